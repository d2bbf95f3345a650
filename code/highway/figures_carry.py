"""The plot of the chapter on the carry gate: what every learning rate gives, by depth and initialisation."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .figures import INIT_TITLES, network_colour


def _grid(table: pd.DataFrame, height: float) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """One axis an initialisation (row) and depth (column), each with its part of the table."""
    if len(table) == 0:
        raise ValueError("nothing to plot: there is no row")
    inits, depths = (list(dict.fromkeys(table[name])) for name in ("init", "depth"))
    figure, axes = plt.subplots(
        len(inits), len(depths), figsize=(6.2, 0.6 + height * len(inits)), sharex=True, sharey=True, squeeze=False
    )
    parts = []
    for row, init in zip(axes, inits, strict=True):
        for axis, depth in zip(row, depths, strict=True):
            parts.append((axis, table[(table["depth"] == depth) & (table["init"] == init)]))
            title = f"{depth} blocks"
            axis.set_title(title if len(inits) == 1 else f"{title}, {INIT_TITLES.get(init, init)}", fontsize=11)
    return figure, parts


def plot_rates_by_depth(tuning: pd.DataFrame) -> Figure:
    """Plot validation accuracy against the learning rate, an axis a depth (and an initialisation).

    Chosen rates are ringed. `tuning` has columns network, init, depth, rate, accuracy and chosen; an accuracy of 0
    stands for a run that diverged.
    """
    figure, parts = _grid(tuning, 2.5)
    names = list(dict.fromkeys(tuning["network"]))
    for axis, part in parts:
        for name, rows in part.groupby("network", sort=False):
            rows = rows.sort_values("rate")
            axis.plot(rows["rate"], rows["accuracy"], color=network_colour(name), marker="o", markersize=3.5)
            best = rows[rows["chosen"]]
            axis.scatter(
                best["rate"], best["accuracy"], s=90, facecolors="none", edgecolors=network_colour(name),
                linewidths=1.5, zorder=3,
            )  # fmt: skip
        axis.set(xscale="log", ylim=(-0.05, 1.05))
        place = axis.get_subplotspec()
        axis.set(xlabel="learning rate" if place.is_last_row() else "")
        axis.set(ylabel="validation accuracy" if place.is_first_col() else "")
    handles = [Line2D([], [], color=network_colour(name), marker="o", markersize=3.5) for name in names]
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), columnspacing=1, handlelength=1.3)
    return figure
