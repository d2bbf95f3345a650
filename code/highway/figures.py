"""Every plot of the book. Each function takes plain data and returns the Figure; none trains, loads or shows.

Where several seeds were run, a line is their median and the band reaches from the smallest to the largest.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from .style import INK, PALETTE, PAPER, SEQUENTIAL

INIT_TITLES = {"default": "PyTorch's default", "he": "He initialisation", "xavier": "Xavier initialisation"}

OTHERS = (PALETTE["violet"], PALETTE["ochre"], PALETTE["neutral"])

DASHES = ("", (5, 2), (2, 1.5), (6, 1.5, 1.5, 1.5))
"""For the lines that share a colour, or that colour alone should not tell apart."""

PREDICTED = {"linestyle": "none", "marker": "o", "markersize": 5, "markerfacecolor": PAPER}
"""Open dots, for what was predicted, upon the lines of what was measured."""


KINDS = {kind: PALETTE[kind] for kind in ("plain", "highway", "residual")} | {
    "free": PALETTE["violet"], "fixed": PALETTE["ochre"],
}  # fmt: skip


def network_colour(name: str) -> str:
    """Return the colour of a network by the kind that its name begins with: `highway-50` has that of highway."""
    return KINDS.get(_kind(name), PALETTE["neutral"])


def _kind(name: str) -> str:
    return re.split(r"[-, ]", name)[0]


def _full_range(values: pd.Series) -> tuple[float, float]:
    return values.min(), values.max()


def _network_styles(names: Sequence[str]) -> dict:
    """Colour by kind; the first network of a kind is drawn solid, the second dashed."""
    seen: dict[str, int] = {}
    dashes = {}
    for name in names:
        kind = name.partition("-")[0]
        dashes[name] = ["", (4, 2), (1, 1.5)][min(seen.get(kind, 0), 2)]
        seen[kind] = seen.get(kind, 0) + 1
    return {
        "hue": "network", "style": "network", "hue_order": list(names), "style_order": list(names),
        "palette": {name: network_colour(name) for name in names}, "dashes": dashes,
    }  # fmt: skip


def _require_rows(table: Sequence | pd.DataFrame | Mapping) -> None:
    if len(table) == 0:
        raise ValueError("nothing to plot: there is no row")


def _whole_numbers(axis: Axes) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _log_loss(axis: Axes) -> None:
    """A log axis with plain numbers at 1, 2 and 5 times each power of ten."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def plot_curves(
    history: pd.DataFrame, split: str = "validation", metrics: Sequence[str] = ("loss", "accuracy")
) -> Figure:
    """Plot loss and accuracy against epochs.

    `history` is tidy: columns epoch, split, loss, accuracy, and optionally seed, network and init. With `network`,
    the given `split` is shown, a colour a network and a column an initialisation; without it, as `History.frame`
    gives it, every split has a line of its own. Raises ValueError if there is nothing to plot.
    """
    by_network = "network" in history
    shown = history[history["split"] == split] if by_network else history
    if shown.empty:
        raise ValueError(f"no row of the history has split {split!r}: it has {sorted(set(history['split']))}")
    inits = list(dict.fromkeys(shown["init"])) if by_network and "init" in shown else [None]
    figure, axes = plt.subplots(
        len(metrics), len(inits), figsize=(6.2, 0.6 + 2.3 * len(metrics)), sharex=True, sharey="row", squeeze=False
    )
    styles = _network_styles(list(dict.fromkeys(shown["network"]))) if by_network else {
        "hue": "split", "palette": dict(zip(sorted(set(shown["split"])), cycle((*OTHERS, INK)), strict=False)),
    }  # fmt: skip
    for row, metric in zip(axes, metrics, strict=True):
        for axis, init in zip(row, inits, strict=True):
            part = shown if init is None else shown[shown["init"] == init]
            sns.lineplot(
                part, x="epoch", y=metric, ax=axis, estimator="median", errorbar=_full_range,
                legend=axis is axes[0, 0], **styles,
            )  # fmt: skip
            _whole_numbers(axis)
            if axis in axes[0] and init is not None:
                axis.set_title(INIT_TITLES.get(init, init))
        if metric == "loss":  # when all is drawn: seaborn takes the median of logarithms on an axis that is log already
            for axis in row:
                _log_loss(axis)
    axes[0, 0].legend(title=None)
    return figure


def plot_test_accuracy(history: pd.DataFrame) -> Figure:
    """Plot the test accuracy of every run as one point, by network and initialisation."""
    tests = history[history["split"] == "test"]
    _require_rows(tests)
    names = list(dict.fromkeys(tests["network"]))
    inits = list(dict.fromkeys(tests["init"]))
    figure, axes = plt.subplots(1, len(inits), figsize=(6.2, 2.6), sharex=True, sharey=True, squeeze=False)
    jitter = np.random.default_rng(0).uniform(-0.18, 0.18, len(tests))
    rows = tests["network"].map(names.index) + jitter
    colours = tests["network"].map(network_colour)
    for axis, init in zip(axes[0], inits, strict=True):
        here = tests["init"] == init
        axis.scatter(tests.loc[here, "accuracy"], rows[here], s=25, color=colours[here])
        axis.set_yticks(range(len(names)), names)
        axis.set(title=INIT_TITLES.get(init, init), xlabel="test accuracy")
    axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def plot_rate_search(tuning: pd.DataFrame, panel: str = "init") -> Figure:
    """Plot the validation accuracy against the learning rate, and ring the rate that was chosen.

    `tuning` has columns network, rate, accuracy, chosen and `panel`, init or depth, whose values get an axis each; an
    accuracy of 0 stands for a run that diverged.
    """
    _require_rows(tuning)
    panels = list(dict.fromkeys(tuning[panel]))
    styles = _network_styles(list(dict.fromkeys(tuning["network"])))
    figure, axes = plt.subplots(1, len(panels), figsize=(6.2, 3.2), sharey=True, squeeze=False)
    for axis, value in zip(axes[0], panels, strict=True):
        part = tuning[tuning[panel] == value]
        sns.lineplot(part, x="rate", y="accuracy", ax=axis, legend=axis is axes[0, 0], **styles)
        for name, colour in styles["palette"].items():
            rows = part[part["network"] == name]
            axis.scatter(rows["rate"], rows["accuracy"], s=14, color=colour, zorder=3)
            best = rows[rows["chosen"]]
            axis.scatter(
                best["rate"], best["accuracy"], s=110, facecolors="none", edgecolors=colour, linewidths=1.5, zorder=3
            )
        title = f"{value} blocks" if panel == "depth" else INIT_TITLES.get(value, value)
        axis.set(xscale="log", title=title, xlabel="learning rate", ylabel="validation accuracy")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].get_legend().remove()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), columnspacing=1, handlelength=1.5)
    return figure


def plot_gradient_flow(norms: Mapping[str, Sequence[float]] | pd.DataFrame, title: str | None = None) -> Figure:
    """Plot the L2 norm of every layer's gradient against the layer, on a log axis.

    `norms` maps a network's name to its norms from the input layer (0) to the output layer (L + 1), or is a tidy frame
    with columns network, layer and norm, and optionally init (a column each) and seed (a band).
    """
    _require_rows(norms)
    if not isinstance(norms, pd.DataFrame):
        norms = pd.concat(
            [pd.DataFrame({"network": name, "layer": np.arange(len(v)), "norm": list(v)}) for name, v in norms.items()],
            ignore_index=True,
        )
    inits = list(dict.fromkeys(norms["init"])) if "init" in norms else [None]
    figure, axes = plt.subplots(1, len(inits), figsize=(6.2, 3.4), sharey=True, squeeze=False)
    styles = _network_styles(list(dict.fromkeys(norms["network"])))
    for axis, init in zip(axes[0], inits, strict=True):
        part = norms if init is None else norms[norms["init"] == init]
        sns.lineplot(
            part, x="layer", y="norm", ax=axis, estimator="median", errorbar=_full_range,
            legend=axis is axes[0, 0], **styles,
        )  # fmt: skip
        _whole_numbers(axis)
        axis.set(xlabel="layer", ylabel="L2 norm of the gradient")
        if init is not None:
            axis.set_title(INIT_TITLES.get(init, init))
    axes[0, 0].set_yscale("log")  # when all is drawn, as above; the axes share it
    axes[0, 0].legend(title=None)
    if title:
        figure.suptitle(title)
    return figure


def plot_gradient_maps(norms: pd.DataFrame) -> Figure:
    """Plot a heat map of gradient norms, layer by update, for every (network, init), on one common log scale.

    `norms` has columns network, init, step, layer and norm, of one seed. Updates are placed by their order, so that
    the early ones, which are probed more often, can be told apart.
    """
    _require_rows(norms)
    groups = list(norms.groupby(["init", "network"], sort=False))
    inits = list(dict.fromkeys(norms["init"]))
    names = list(dict.fromkeys(norms["network"]))
    scale = LogNorm(norms.loc[norms["norm"] > 0, "norm"].min(), norms["norm"].max())
    figure, axes = plt.subplots(
        len(names), len(inits), figsize=(6.2, 0.5 + 1.9 * len(names)), sharex=True, sharey=True, squeeze=False
    )
    for (init, name), part in groups:
        axis = axes[names.index(name), inits.index(init)]
        grid = part.pivot(index="layer", columns="step", values="norm")
        image = axis.imshow(
            grid.clip(lower=scale.vmin), norm=scale, cmap=SEQUENTIAL, aspect="auto", origin="lower",
            interpolation="nearest",
        )  # fmt: skip
        steps = list(grid.columns)
        ticks = [i for i, step in enumerate(steps) if i in (0, len(steps) - 1) or step in _decades(steps)]
        axis.set_xticks(ticks, [str(steps[i]) for i in ticks])
        axis.set_title(f"{name}, {INIT_TITLES.get(init, init)}", fontsize=10)
        axis.grid(False)
    for axis in axes[-1]:
        axis.set_xlabel("update")
    for axis in axes[:, 0]:
        axis.set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="L2 norm of the gradient", aspect=40)
    return figure


def _decades(steps: Sequence[int]) -> set[int]:
    """The probed step nearest to each power of ten."""
    powers = 10 ** np.arange(1, np.log10(max(steps)) + 0.01)
    return {min(steps, key=lambda step: abs(step - power)) for power in powers if power < max(steps) / 3}


def plot_gate_map(gates: np.ndarray, rows: Sequence[str], label: str = "mean of T(x)") -> Figure:
    """Plot transform gates as a heat map: `gates` is (n, L), with the blocks, from 1, as columns.

    `rows` names every row, or, as a single entry, what the rows are.
    """
    figure, axis = plt.subplots(figsize=(6.2, 0.9 + max(0.27 * len(rows), 2.2)))
    depth = gates.shape[1]
    image = axis.imshow(
        gates, aspect="auto", cmap=SEQUENTIAL, vmin=0, interpolation="nearest",
        extent=(0.5, depth + 0.5, len(gates) - 0.5, -0.5),
    )  # fmt: skip
    axis.set(xlabel="block")
    if len(rows) == len(gates):
        axis.set_yticks(range(len(gates)), rows)
    else:
        axis.set(ylabel=rows[0], yticks=[])
    _whole_numbers(axis)
    axis.grid(False)
    figure.colorbar(image, ax=axis, label=label)
    return figure


def plot_digits(images: np.ndarray, labels: Sequence[int]) -> Figure:
    """Show digits in one row, each under its label: `images` is (n, 28, 28)."""
    _require_rows(images)
    figure, axes = plt.subplots(1, len(images), figsize=(6.2, 0.95))
    for axis, image, label in zip(np.atleast_1d(axes), images, labels, strict=True):
        axis.imshow(image, cmap="gray", interpolation="nearest")
        axis.set_title(str(label), fontsize=11)
        axis.axis("off")
    return figure


def plot_gate_biases(before: np.ndarray, after: np.ndarray) -> Figure:
    """Plot the gate biases of every block, one point a unit, and the value they started from: both (L, d)."""
    depth, width = after.shape
    blocks = np.repeat(np.arange(1, depth + 1), width)
    figure, axis = plt.subplots(figsize=(6.2, 3.0))
    jitter = np.random.default_rng(0).uniform(-0.25, 0.25, blocks.size)
    axis.scatter(
        blocks + jitter, after.ravel(), s=7, color=PALETTE["highway"], alpha=0.5, linewidths=0,
        label="a unit, after training",
    )  # fmt: skip
    axis.plot(np.arange(1, depth + 1), np.median(after, axis=1), color=INK, label="median of the block")
    axis.axhline(float(np.median(before)), color=PALETTE["ochre"], dashes=(4, 2), label="before training")
    axis.set(xlabel="block", ylabel="gate bias")
    _whole_numbers(axis)
    figure.legend(loc="outside upper center", ncols=3, handlelength=1.4, columnspacing=1.2, markerscale=1.8)
    return figure


def plot_by_block(series: Mapping[str, Sequence[float]], ylabel: str, first: int = 1, log: bool = False) -> Figure:
    """Plot values against the block, a line a series; the first value belongs to block `first`.

    A series that is named after a network has that network's colour.
    """
    figure, axis = plt.subplots(figsize=(6.2, 3.2))
    others = cycle(OTHERS)
    for (name, values), dash in zip(series.items(), cycle([(), (4, 2), (1, 1.5), (5, 1, 1, 1)]), strict=False):
        colour = network_colour(name) if _kind(name) in KINDS else next(others)
        axis.plot(np.arange(first, first + len(values)), values, color=colour, dashes=dash, label=name)
    axis.set(xlabel="block", ylabel=ylabel)
    axis.set(yscale="log") if log else axis.set(ylim=(0, None))
    _whole_numbers(axis)
    axis.legend()
    return figure


def plot_gate_limits(biases: np.ndarray, to_input: np.ndarray, to_candidate: np.ndarray) -> Figure:
    """Plot how far a block's output lies from its input and from its candidate, against the gate bias."""
    figure, axis = plt.subplots(figsize=(6.2, 3.2))
    axis.plot(biases, to_input, color=PALETTE["highway"], label="largest |y - x|")
    axis.plot(biases, to_candidate, color=PALETTE["violet"], dashes=(4, 2), label="largest |y - H|")
    axis.set(yscale="log", xlabel="gate bias", ylabel="distance")
    axis.legend()
    return figure


def plot_prediction(
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
    xlabel: str,
    ylabel: str,
    log: bool = True,
    panel: str | None = None,
) -> Figure:
    """Plot what was measured as a solid line with a band over seeds, and what was predicted as dots upon it.

    Both frames are tidy: columns series, x and value, and `measured` has a seed too. A series that is named after a
    network has that network's colour; `panel` names a column whose values get an axis each.
    """
    _require_rows(measured)
    panels = list(dict.fromkeys(measured[panel])) if panel else [None]
    names = list(dict.fromkeys([*measured["series"], *predicted["series"]]))
    others, colours = cycle((*OTHERS, INK)), {}
    for name in names:
        colours[name] = network_colour(name) if _kind(name) in KINDS else next(others)
    dashes, seen = {}, {}
    for name in names:  # the first series of a colour is solid
        seen.setdefault(colours[name], cycle(DASHES))
        dashes[name] = next(seen[colours[name]])
    figure, axes = plt.subplots(1, len(panels), figsize=(6.2, 3.3), sharey=True, squeeze=False)
    for axis, value in zip(axes[0], panels, strict=True):
        here, there = (frame if value is None else frame[frame[panel] == value] for frame in (measured, predicted))
        sns.lineplot(
            here, x="x", y="value", hue="series", style="series", hue_order=names, style_order=names, palette=colours,
            dashes=dashes, estimator="median", errorbar=_full_range, ax=axis, legend=axis is axes[0, 0],
        )  # fmt: skip
        for name, part in there.groupby("series", sort=False):
            few = part.iloc[np.unique(np.linspace(0, len(part) - 1, 13).round().astype(int))]
            axis.plot(few["x"], few["value"], markeredgecolor=colours[name], zorder=4, **PREDICTED)
        if pd.api.types.is_integer_dtype(here["x"]):
            _whole_numbers(axis)
        axis.set(xlabel=xlabel, ylabel=ylabel if axis is axes[0, 0] else "")
        if value is not None:
            axis.set_title(str(value))
    if log:  # when all is drawn, as above; the axes share it
        axes[0, 0].set_yscale("log")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    handles.append(Line2D([], [], markeredgecolor=INK, **PREDICTED))
    axes[0, 0].get_legend().remove()
    figure.legend(handles, [*labels, "predicted"], loc="outside upper center", ncols=min(4, len(handles)))
    return figure
