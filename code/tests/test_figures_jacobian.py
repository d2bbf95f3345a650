"""The figures of the chapter on the Jacobian show the data they were given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import to_hex

from highway import figures_jacobian as figures
from highway.style import DARK, INK, PALETTE, to_svg

pytestmark = pytest.mark.usefixtures("book_style")


def shares():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            (row, column, block, term, rng.uniform())
            for row in ("default", "He")
            for column in ("before", "after")
            for block in range(1, 5)
            for term in figures.TERMS
        ],
        columns=["row", "column", "block", "term", "share"],
    )


def spectrum():
    rng = np.random.default_rng(1)
    names = ["lower", "smallest", "rms", "largest", "upper"]
    rows = [
        {"panel": panel, "x": x, **dict(zip(names, np.sort(rng.uniform(0.1, 2, 5)), strict=True)),
         "predicted": rng.uniform(0.5, 1)}
        for panel in ("one", "two")
        for x in (3, 1, 2)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def scan():
    rng = np.random.default_rng(2)
    rows = [(L, b, -rng.uniform(0, 12)) for L in (10, 20, 50) for b in (0.0, -1.0, -2.0)]
    return pd.DataFrame(rows, columns=["depth", "bias", "value"])


LINES = {"first": (np.array([10.0, 50.0]), np.array([-0.5, -1.5])), "second": (np.array([10.0, 50.0]), np.zeros(2))}


def losses():
    rng = np.random.default_rng(3)
    rows = [(b, e, s, rng.uniform(0.1, 2)) for b in (0, -2, -4) for e in (1, 2, 3) for s in range(3)]
    return pd.DataFrame(rows, columns=["gate_bias", "epoch", "seed", "loss"])


def updates():
    rng = np.random.default_rng(4)
    rows = [(f"b = {b}", t, s, rng.uniform(1e-6, 1)) for b in (0, -3) for t in (0, 1, 10, 1000) for s in range(3)]
    return pd.DataFrame(rows, columns=["series", "step", "seed", "value"])


FIGURES = {
    "plot_term_shares": lambda: figures.plot_term_shares(shares()),
    "plot_spectrum": lambda: figures.plot_spectrum(spectrum(), "x"),
    "plot_gain_map": lambda: figures.plot_gain_map(scan(), LINES),
    "plot_loss_by_bias": lambda: figures.plot_loss_by_bias(losses()),
    "plot_updates": lambda: figures.plot_updates(updates(), "norm"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_colours_change_with_the_theme_and_the_drawing_repeats(name):
    svg = to_svg(FIGURES[name]())
    assert svg == to_svg(FIGURES[name]())
    assert DARK[INK] in svg


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_no_figure(name):
    empty = {
        "plot_term_shares": lambda: figures.plot_term_shares(shares()[:0]),
        "plot_spectrum": lambda: figures.plot_spectrum(spectrum()[:0], "x"),
        "plot_gain_map": lambda: figures.plot_gain_map(scan()[:0], LINES),
        "plot_loss_by_bias": lambda: figures.plot_loss_by_bias(losses()[:0]),
        "plot_updates": lambda: figures.plot_updates(updates()[:0], "norm"),
    }
    with pytest.raises(ValueError, match="nothing to plot"):
        empty[name]()


def test_term_shares_have_a_panel_for_each_row_and_column():
    figure = figures.plot_term_shares(shares())
    assert [axis.get_title() for axis in figure.axes] == [
        "default, before", "default, after", "He, before", "He, after",
    ]  # fmt: skip
    for axis, (_, part) in zip(figure.axes, shares().groupby(["row", "column"], sort=False), strict=True):
        assert [line.get_label() for line in axis.lines] == list(figures.TERMS)
        for line in axis.lines:
            expected = part[part["term"] == line.get_label()]
            assert line.get_xdata().tolist() == expected["block"].tolist()
            assert line.get_ydata().tolist() == expected["share"].tolist()
            assert line.get_color() == figures.TERMS[line.get_label()][0]


@pytest.mark.parametrize("log", [False, True])
def test_a_spectrum_has_band_line_bounds_and_dots(log):
    figure = figures.plot_spectrum(spectrum(), "blocks", log)
    for axis, panel in zip(figure.axes, ("one", "two"), strict=True):
        part = spectrum()[spectrum()["panel"] == panel].sort_values("x")
        rms, lower, upper, dots = (line.get_ydata().tolist() for line in axis.lines)
        assert (rms, lower, upper, dots) == tuple(part[c].tolist() for c in ("rms", "lower", "upper", "predicted"))
        (band,) = axis.collections
        corners = pd.DataFrame(band.get_paths()[0].vertices, columns=["x", "y"]).groupby("x")["y"]
        assert corners.min().tolist() == part["smallest"].tolist()
        assert corners.max().tolist() == part["largest"].tolist()
        assert axis.get_title() == panel
        assert axis.get_xlabel() == "blocks"
        assert axis.get_yscale() == ("log" if log else "linear")


def test_the_map_shows_each_cell_in_its_place_and_every_line():
    figure = figures.plot_gain_map(scan(), LINES)
    axis = figure.axes[0]
    (mesh,) = (item for item in axis.collections if isinstance(item, QuadMesh))
    expected = scan().pivot(index="bias", columns="depth", values="value").clip(lower=-8)
    assert mesh.get_array().reshape(3, 3).tolist() == expected.to_numpy().tolist()
    corners = mesh.get_coordinates()
    for i, depth in enumerate((10, 20, 50)):
        assert corners[0, i, 0] < depth < corners[0, i + 1, 0]
    for i, bias in enumerate((-2, -1, 0)):
        assert corners[i, 0, 1] == bias - 0.5
        assert corners[i + 1, 0, 1] == bias + 0.5
    named = {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}
    assert list(named) == list(LINES)
    for name, (depths, biases) in LINES.items():
        assert named[name].get_xdata().tolist() == depths.tolist()
        assert named[name].get_ydata().tolist() == biases.tolist()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(LINES)
    assert axis.get_xscale() == "log"
    assert (mesh.norm.vmin, mesh.norm.vmax) == (-8, 0)


def test_losses_are_points_with_a_line_through_their_medians():
    axis = figures.plot_loss_by_bias(losses()).axes[0]
    points = [item for item in axis.collections if isinstance(item, PathCollection)]
    lines = [line for line in axis.lines if len(line.get_xdata())]
    for epoch, cloud, line in zip((1, 2, 3), points, lines, strict=True):
        part = losses()[losses()["epoch"] == epoch]
        assert np.asarray(cloud.get_offsets()).tolist() == part[["gate_bias", "loss"]].to_numpy().tolist()
        middle = part.groupby("gate_bias")["loss"].median()
        assert line.get_xdata().tolist() == [-4, -2, 0]
        assert line.get_ydata().tolist() == middle.tolist()
        assert to_hex(cloud.get_facecolor()[0]) == line.get_color()
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [f"after epoch {e}" for e in (1, 2, 3)]
    assert axis.get_yscale() == "log"


def test_updates_are_medians_on_log_axes_with_update_0_before_update_1():
    figure = figures.plot_updates(updates(), "norm")
    axis = figure.axes[0]
    lines = [line for line in axis.lines if len(line.get_xdata())]
    for line, (_, part) in zip(lines, updates().groupby("series", sort=False), strict=True):
        assert line.get_xdata().tolist() == [0.5, 1, 10, 1000]
        assert line.get_ydata().tolist() == pytest.approx(part.groupby("step")["value"].median().tolist())
    assert len(axis.collections) == 2
    assert (axis.get_xscale(), axis.get_yscale(), axis.get_ylabel()) == ("log", "log", "norm")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["b = 0", "b = -3"]
    assert lines[0].get_color() == PALETTE["neutral"]
