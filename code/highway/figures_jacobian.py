"""The plots of the chapter on the Jacobian; the rules are those of `figures`."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .figures import DASHES, PREDICTED, _full_range, _require_rows, _whole_numbers
from .style import INK, PALETTE, SEQUENTIAL

TERMS = dict(zip(
    ("carry", "proposal", "gate", "cross"),
    zip((PALETTE[name] for name in ("highway", "plain", "violet", "neutral")), DASHES, strict=True),
    strict=True,
))  # fmt: skip
"""Colour and dashes of each term of the Jacobian."""


def plot_term_shares(shares: pd.DataFrame) -> Figure:
    """Plot what the terms of the Jacobian contribute, a line a term, against the block.

    `shares` is tidy: columns row and column (the panel), block, term and share.
    """
    _require_rows(shares)
    rows, columns = (list(dict.fromkeys(shares[name])) for name in ("row", "column"))
    figure, axes = plt.subplots(
        len(rows), len(columns), figsize=(6.2, 0.6 + 2.1 * len(rows)), sharex=True, sharey=True, squeeze=False
    )
    for (row, column), part in shares.groupby(["row", "column"], sort=False):
        axis = axes[rows.index(row), columns.index(column)]
        for term, (colour, dashes) in TERMS.items():
            line = part[part["term"] == term]
            axis.plot(line["block"], line["share"], color=colour, dashes=dashes or (None, None), label=term)
        axis.set_title(f"{row}, {column}")
        _whole_numbers(axis)
    for axis in axes[-1]:
        axis.set_xlabel("block")
    for axis in axes[:, 0]:
        axis.set_ylabel("share")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def plot_spectrum(spectrum: pd.DataFrame, xlabel: str, log: bool = False) -> Figure:
    """Plot singular values against something: a band from the smallest to the largest, their root mean square, bounds.

    `spectrum` has columns panel, x, smallest, largest, rms, predicted (of the rms), lower and upper (the bounds).
    """
    _require_rows(spectrum)
    panels = list(dict.fromkeys(spectrum["panel"]))
    figure, axes = plt.subplots(1, len(panels), figsize=(6.2, 3.5), sharex=True, sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        part = spectrum[spectrum["panel"] == panel].sort_values("x")
        axis.fill_between(part["x"], part["smallest"], part["largest"], color=PALETTE["highway"], alpha=0.25, lw=0)
        axis.plot(part["x"], part["rms"], color=PALETTE["highway"])
        for bound in ("lower", "upper"):
            axis.plot(part["x"], part[bound], color=PALETTE["ochre"], dashes=(4, 2))
        dots = part[:: max(1, len(part) // 10)]
        axis.plot(dots["x"], dots["predicted"], markeredgecolor=PALETTE["highway"], zorder=4, **PREDICTED)
        axis.set(title=panel, xlabel=xlabel)
    if log:
        axes[0, 0].set_yscale("log")
    axes[0, 0].set_ylabel("singular value")
    handles = [
        Patch(color=PALETTE["highway"], alpha=0.25, lw=0, label="smallest to largest"),
        Line2D([], [], color=PALETTE["highway"], label="root mean square"),
        Line2D([], [], markeredgecolor=PALETTE["highway"], label="predicted", **PREDICTED),
        Line2D([], [], color=PALETTE["ochre"], dashes=(4, 2), label="bounds"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def plot_gain_map(measured: pd.DataFrame, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Plot a grid of measured log10 ratios as a map, depth (log axis) by gate bias, with predicted lines upon it.

    `measured` has columns depth, bias and value (drawn clipped at -8); `lines` maps a name to its depths and biases.
    """
    _require_rows(measured)
    grid = measured.pivot(index="bias", columns="depth", values="value")
    places, biases = np.log10(grid.columns.to_numpy(dtype=float)), grid.index.to_numpy(dtype=float)
    figure, axis = plt.subplots(figsize=(6.2, 4.3))
    image = axis.pcolormesh(
        10 ** _edges(places), _edges(biases), grid.to_numpy().clip(min=-8), cmap=SEQUENTIAL, vmin=-8, vmax=0
    )
    axis.set(xscale="log", xlabel="depth L", ylabel="gate bias b")
    limits = axis.get_xlim(), axis.get_ylim()
    dashes = [(None, None), (6, 2), (3, 2), (1.5, 1.5)]
    colours = [PALETTE["highway"], "white", "white", "white"]
    for (name, (depths, line)), dash, colour in zip(lines.items(), dashes, colours, strict=False):
        axis.plot(depths, line, color="black", linewidth=3.4)
        axis.plot(depths, line, color=colour, dashes=dash, linewidth=1.8, label=name)
    axis.set(xlim=limits[0], ylim=limits[1])
    axis.set_xticks(list(grid.columns), [str(depth) for depth in grid.columns])
    axis.minorticks_off()
    axis.grid(False)
    handles = [
        Line2D([], [], color=PALETTE["highway"] if i == 0 else INK, dashes=dash, label=name)
        for i, (name, dash) in enumerate(zip(lines, dashes, strict=False))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), columnspacing=1.2)
    figure.colorbar(image, ax=axis, label="log10 of first over last, measured", extend="min")
    return figure


def _edges(places: np.ndarray) -> np.ndarray:
    """The borders of cells around `places`."""
    middle = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - middle[0]], middle, [2 * places[-1] - middle[-1]]])


def plot_loss_by_bias(losses: pd.DataFrame) -> Figure:
    """Plot the loss against the gate bias, one point a seed and a line through the medians, a colour an epoch.

    `losses` has columns gate_bias, epoch, seed and loss.
    """
    _require_rows(losses)
    epochs = sorted(losses["epoch"].unique())
    figure, axis = plt.subplots(figsize=(6.2, 3.4))
    colours = [PALETTE["neutral"], PALETTE["violet"], PALETTE["highway"]]
    for epoch, colour, dash, marker in zip(epochs, colours, [(2, 1.5), (5, 2), ()], "^so", strict=True):
        part = losses[losses["epoch"] == epoch]
        middle = part.groupby("gate_bias")["loss"].median()
        axis.plot(middle.index, middle, color=colour, dashes=dash or (None, None))
        axis.scatter(part["gate_bias"], part["loss"], s=18, color=colour, marker=marker, zorder=3)
        axis.plot([], [], color=colour, dashes=dash or (None, None), marker=marker, label=f"after epoch {epoch}")
    axis.set(yscale="log", xlabel="gate bias b at the start", ylabel="training loss")
    axis.legend()
    return figure


def plot_updates(norms: pd.DataFrame, ylabel: str) -> Figure:
    """Plot a quantity against the update, on two log axes: a line a series (its median), a band over seeds.

    `norms` has columns series, step, seed and value. Update 0 is drawn half a step before update 1.
    """
    _require_rows(norms)
    names = list(dict.fromkeys(norms["series"]))
    colours = [PALETTE[name] for name in ("neutral", "plain", "highway", "residual", "violet", "ochre")]
    styles = dict(zip(names, [*DASHES, (3, 1), (1, 1)], strict=False))
    figure, axis = plt.subplots(figsize=(6.2, 3.6))
    sns.lineplot(
        norms.assign(step=norms["step"].clip(lower=0.5)), x="step", y="value", hue="series", style="series",
        hue_order=names, style_order=names, palette=dict(zip(names, colours, strict=False)), dashes=styles,
        estimator="median", errorbar=_full_range, ax=axis,
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="update", ylabel=ylabel)  # when all is drawn, as elsewhere
    axis.set_xticks([0.5, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    axis.minorticks_off()
    handles, labels = axis.get_legend_handles_labels()
    axis.get_legend().remove()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(6, len(names)), columnspacing=1.1)
    return figure
