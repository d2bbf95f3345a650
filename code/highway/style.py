"""The book's palette and figure style.

One colour means one thing throughout: plain networks, highway networks and residual networks keep theirs in every
figure. Every colour stands at least 3:1 against the light and against the dark page, and the three networks are
told apart with every common kind of colour blindness (they are taken from Okabe and Ito's set).

`use_book_style()` is called once, at the top of a page. From then on a figure is drawn as one SVG that carries both
themes: a media query inside it exchanges the book's colours when the reader's theme is dark. Colours outside the
palette (an image's colour map, white numbers on a heat map) stay as they are.
"""

import io
import re

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

PALETTE = {
    "plain": "#d55e00",
    "highway": "#0072b2",
    "residual": "#00876c",
    "violet": "#9a5fb4",
    "ochre": "#8f7000",
    "neutral": "#767d86",
}
"""Colours by meaning, the three networks first, then three for other things. Use by name, never by number."""

SEQUENTIAL = "cividis"
"""Colour map for quantities from nothing to much, such as a gate's value."""

DIVERGING = "PuOr"
"""Colour map for quantities on both sides of a middle."""

PAPER = "#fefefe"
INK = "#24292f"
GRID = "#dde1e6"

DARK = {
    PALETTE["plain"]: "#f58433",
    PALETTE["highway"]: "#56b0ee",
    PALETTE["residual"]: "#2fc3a0",
    PALETTE["violet"]: "#c394dc",
    PALETTE["ochre"]: "#cfae4a",
    PALETTE["neutral"]: "#9aa1ab",
    PAPER: "#121212",
    INK: "#d5dae0",
    GRID: "#33383f",
}
"""What each colour of the book becomes on the dark page."""

_RC = {
    "figure.figsize": (6.2, 3.8),
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": PAPER,
    "savefig.edgecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.labelsize": 11.5,
    "axes.linewidth": 0.9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": matplotlib.cycler(color=list(PALETTE.values())),
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.frameon": False,
    "legend.facecolor": PAPER,
    "legend.edgecolor": GRID,
    "legend.fontsize": 10.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "patch.edgecolor": PAPER,
    "boxplot.boxprops.color": INK,
    "boxplot.flierprops.color": INK,
    "boxplot.capprops.color": INK,
    "boxplot.whiskerprops.color": INK,
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "image.cmap": SEQUENTIAL,
    "svg.fonttype": "path",
    "svg.hashsalt": "highway",
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.06,
}


def to_svg(figure: Figure) -> str:
    """Return `figure` as one SVG for light and dark pages; made again from the same data, the same bytes."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]  # leaves out the document type, which names another host
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
        if f"{part}: {light}" in svg
    )
    return re.sub(r"(<svg[^>]*>)", rf"\1<style>@media (prefers-color-scheme: dark){{{rules}}}</style>", svg, count=1)


def _show(figure: Figure) -> str:
    """Draw a figure in IPython once: pyplot, which would show it again at the end of the cell, lets go of it."""
    pyplot.close(figure)
    return to_svg(figure)


def use_book_style() -> None:
    """Draw as the book does: set matplotlib's defaults and, inside IPython, show figures as two-theme SVG."""
    matplotlib.rcParams.update(_RC)
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        return
    shell = get_ipython()
    if shell is None:
        return
    shell.run_line_magic("matplotlib", "inline")
    matplotlib.rcParams.update(_RC)  # the inline backend brings defaults of its own
    formatters = shell.display_formatter.formatters
    for name, formatter in formatters.items():
        if name.startswith(("image/", "application/pdf")):
            formatter.pop(Figure, None)
    formatters["image/svg+xml"].for_type(Figure, _show)
