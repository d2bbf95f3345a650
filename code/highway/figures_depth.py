"""The plots of the chapter on depth that `highway.figures` has not: a random walk, and final losses against depth."""

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from .figures import DASHES, OTHERS, PREDICTED, _log_loss, _require_rows, network_colour
from .style import INK, PALETTE


def plot_log_norm(measured: pd.DataFrame, predicted: pd.DataFrame) -> Figure:
    """Plot mean and standard deviation of a log-norm against depth: lines measured, dots predicted.

    Both frames have columns series, depth, mean and std; `measured` has an example too, over which the band reaches
    from the smallest to the largest about the median. Raises ValueError if there is nothing to plot.
    """
    _require_rows(measured)
    names = list(dict.fromkeys(measured["series"]))
    colours = dict(zip(names, cycle((PALETTE["plain"], *OTHERS)), strict=False))
    figure, axes = plt.subplots(1, 2, figsize=(6.2, 3.2))
    for axis, column in zip(axes, ("mean", "std"), strict=True):
        for name, dash in zip(names, cycle(DASHES), strict=False):
            by_depth = measured[measured["series"] == name].groupby("depth")[column]
            middle, low, high = by_depth.median(), by_depth.min(), by_depth.max()
            axis.plot(middle.index, middle, color=colours[name], dashes=dash or (None, None), label=name)
            axis.fill_between(middle.index, low, high, color=colours[name], alpha=0.2, linewidth=0)
            dots = predicted[predicted["series"] == name]
            axis.plot(dots["depth"], dots[column], markeredgecolor=colours[name], zorder=4, **PREDICTED)
        axis.set(xlabel="blocks", title={"mean": "mean", "std": "standard deviation"}[column])
    axes[0].set_ylabel("ln of the norm over its root mean square")
    axes[0].yaxis.label.set_fontsize(10)
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], markeredgecolor=INK, **PREDICTED))
    figure.legend(handles, [*labels, "predicted"], loc="outside upper center", ncols=len(handles))
    return figure


def plot_against_depth(
    runs: pd.DataFrame, ylabel: str, log: bool = True, reference: tuple[str, float] | None = None
) -> Figure:
    """Plot the final value of every run as one point against its depth, and a line through the medians.

    `runs` has columns series, depth, seed and value. A run without a finite value diverged: it is a cross at the upper
    edge, and counts as the worst in the median. A series has the colour of the network that its name begins with;
    `reference` is a label and a value for a horizontal line. Raises ValueError if there is nothing to plot.
    """
    _require_rows(runs)
    names = list(dict.fromkeys(runs["series"]))
    colours = {name: network_colour(name) for name in names}
    seen, dashes = {}, {}
    for name in names:  # the first series of a colour is solid
        seen.setdefault(colours[name], iter(DASHES))
        dashes[name] = next(seen[colours[name]])
    figure, axis = plt.subplots(figsize=(6.2, 3.8))
    if reference:
        axis.axhline(reference[1], color=PALETTE["neutral"], linewidth=1, dashes=(1, 2), label=reference[0])
    for place, name in enumerate(names):
        part = runs[runs["series"] == name]
        aside = 1.035 ** (place - (len(names) - 1) / 2)  # so that the points of two networks do not cover each other
        finite = np.isfinite(part["value"])
        axis.scatter(part["depth"][finite] * aside, part["value"][finite], s=18, color=colours[name], zorder=3)
        axis.scatter(
            part["depth"][~finite] * aside, np.ones((~finite).sum()), s=30, marker="x", color=colours[name],
            transform=axis.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip
        middle = part.assign(value=part["value"].where(finite, np.inf)).groupby("depth")["value"].median()
        middle = middle.where(np.isfinite(middle))
        axis.plot(middle.index * aside, middle, color=colours[name], dashes=dashes[name] or (None, None), label=name)
    depths = sorted(set(runs["depth"]))
    axis.set(xscale="log", xlabel="number of blocks L", ylabel=ylabel)
    axis.xaxis.set_major_locator(FixedLocator(depths))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    if log:
        _log_loss(axis)
    figure.legend(loc="outside upper center", ncols=2)
    return figure
