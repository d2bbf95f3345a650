"""The plots of the chapter on depth show the data they were given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from highway.figures_depth import plot_against_depth, plot_log_norm
from highway.style import PALETTE

pytestmark = pytest.mark.usefixtures("book_style")


def log_norms():
    rng = np.random.default_rng(0)
    rows = [
        (f"{width} units", depth, example, rng.normal(), rng.uniform(1, 2))
        for width in (20, 40)
        for depth in range(4)
        for example in range(3)
    ]
    return pd.DataFrame(rows, columns=["series", "depth", "example", "mean", "std"])


def test_log_norms_are_medians_bands_and_dots():
    measured = log_norms()
    predicted = measured.groupby(["series", "depth"], as_index=False)[["mean", "std"]].mean()
    figure = plot_log_norm(measured, predicted)
    for axis, column in zip(figure.axes, ("mean", "std"), strict=True):
        lines = {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}
        bands = list(axis.collections)
        dots = [line for line in axis.lines if line.get_marker() == "o"]
        assert len(bands) == len(dots) == len(lines) == 2
        for band, dot, (name, part) in zip(bands, dots, measured.groupby("series"), strict=True):
            by_depth = part.groupby("depth")[column]
            np.testing.assert_array_equal(lines[name].get_ydata(), by_depth.median())
            corners = band.get_paths()[0].vertices[:, 1]
            assert corners.max() == by_depth.max().max()
            assert corners.min() == by_depth.min().min()
            np.testing.assert_array_equal(dot.get_ydata(), predicted.loc[predicted["series"] == name, column])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["20 units", "40 units", "predicted"]


def runs():
    rng = np.random.default_rng(1)
    rows = [
        (series, depth, seed, rng.uniform(0.01, 3))
        for series in ("highway, bias −2", "highway, bias −ln L", "plain, He")
        for depth in (10, 20, 100)
        for seed in range(3)
    ]
    return pd.DataFrame(rows, columns=["series", "depth", "seed", "value"])


def test_every_run_is_a_point_and_the_line_is_their_median():
    table = runs()
    axis = plot_against_depth(table, "loss", reference=("a line", 2.3)).axes[0]
    lines = {line.get_label(): line for line in axis.lines}
    assert set(lines["a line"].get_ydata()) == {2.3}
    drawn = [points for points in axis.collections if len(points.get_offsets())]
    for points, (name, part) in zip(drawn, table.groupby("series", sort=False), strict=True):
        offsets = np.asarray(points.get_offsets())
        np.testing.assert_array_equal(offsets[:, 1], part["value"])
        np.testing.assert_allclose(offsets[:, 0], part["depth"], rtol=0.06)
        np.testing.assert_array_equal(lines[name].get_ydata(), part.groupby("depth")["value"].median())
        kind = name.partition(",")[0]
        assert to_hex(points.get_facecolor()[0]) == to_hex(lines[name].get_color()) == PALETTE[kind]
    assert axis.get_xscale() == axis.get_yscale() == "log"
    assert [text for text in axis.get_xticks()] == [10, 20, 100]


def test_a_run_that_diverged_is_a_cross_at_the_edge():
    table = runs()
    here = (table["series"] == "plain, He") & (table["depth"] == 100)
    table.loc[table.index[here][0], "value"] = np.nan
    rest = table.loc[table.index[here][1:], "value"]
    axis = plot_against_depth(table, "loss", log=False).axes[0]
    (cross,) = [p for p in axis.collections if len(p.get_offsets()) == 1]
    assert cross.get_offsets()[0][1] == 1
    line = next(line for line in axis.lines if line.get_label() == "plain, He")
    assert line.get_ydata()[-1] == rest.max()  # the lost run counts as the worst of three
    table.loc[here, "value"] = np.nan
    axis = plot_against_depth(table, "loss").axes[0]
    line = next(line for line in axis.lines if line.get_label() == "plain, He")
    assert np.isnan(line.get_ydata()[-1])


@pytest.mark.parametrize("plot", [lambda t: plot_log_norm(t, t), lambda t: plot_against_depth(t, "loss")])
def test_nothing_to_plot_is_an_error(plot):
    with pytest.raises(ValueError, match="nothing to plot"):
        plot(pd.DataFrame(columns=["series", "depth", "example", "mean", "std", "value"]))
