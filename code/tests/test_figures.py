"""The figures show the data they were given: lines, bands, points and heat maps are read back from each."""

import ast
import builtins
import functools
import inspect
import re
import warnings

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from highway import figures
from highway.style import DARK, INK, PALETTE, to_svg
from highway.training import History

INITS = ("default", "he")
SPLITS = ("train", "validation", "test")


pytestmark = pytest.mark.usefixtures("book_style")


def history(networks=("plain-20", "highway-20"), inits=INITS, seeds=3):
    """A tidy history in which every value is another."""
    rng = np.random.default_rng(0)
    rows = [
        (network, init, 0.1, seed, epoch, split, rng.uniform(0.01, 3), rng.uniform())
        for network in networks
        for init in inits
        for seed in range(seeds)
        for epoch in range(4)
        for split in SPLITS
    ]
    return pd.DataFrame(rows, columns=["network", "init", "rate", "seed", "epoch", "split", "loss", "accuracy"])


def one_history():
    """What `History.frame` gives of one run."""
    history = History()
    for epoch in range(3):
        for place, split in enumerate(("running", "train", "validation"), 1):
            history.add(epoch, split, place / (epoch + 1), 0.1 * place + 0.2 * epoch)
    return history.frame()


def tuning():
    """A search in which each network and initialisation has another best rate; one run diverged."""
    chosen = {("plain-20", "default"): 0.1, ("plain-20", "he"): 0.01, ("highway-20", "default"): 1.0}
    chosen["highway-20", "he"] = 0.1
    rows = [
        (network, init, rate, 0.0 if (network, rate) == ("plain-20", 1.0) else 0.2 + 0.7 * (rate == best), rate == best)
        for (network, init), best in chosen.items()
        for rate in (0.01, 0.1, 1.0)
    ]
    return pd.DataFrame(rows, columns=["network", "init", "rate", "accuracy", "chosen"])


def norms(steps=(0, 1, 2, 5, 10, 20, 50, 100), seeds=1):
    rng = np.random.default_rng(1)
    rows = [
        (network, init, seed, step, layer, 10.0 ** rng.uniform(-8, 0))
        for network in ("plain-20", "highway-20")
        for init in INITS
        for seed in range(seeds)
        for step in steps
        for layer in range(5)
    ]
    return pd.DataFrame(rows, columns=["network", "init", "seed", "step", "layer", "norm"])


def gates():
    return np.random.default_rng(2).uniform(size=(3, 5))


def biases():
    """Gate biases of 4 blocks of 6 units, before and after training."""
    return np.full((4, 6), -2.0), np.random.default_rng(3).normal(-3, 1, (4, 6))


def prediction(seeds=3):
    """Two networks and something else, measured with seeds and predicted, for two initialisations."""
    rng = np.random.default_rng(6)
    rows = [
        (init, series, seed, x, 10.0 ** rng.uniform(-6, 0))
        for init in INITS
        for series in ("plain-20", "highway, b = -2", "bound")
        for seed in range(seeds)
        for x in range(5)
    ]
    measured = pd.DataFrame(rows, columns=["init", "series", "seed", "x", "value"])
    predicted = measured[measured["seed"] == 0].drop(columns="seed").assign(value=lambda rows: rows["value"] * 1.5)
    return measured, predicted


FIGURES = {
    "plot_curves": lambda: figures.plot_curves(history()),
    "plot_test_accuracy": lambda: figures.plot_test_accuracy(history()),
    "plot_rate_search": lambda: figures.plot_rate_search(tuning()),
    "plot_gradient_flow": lambda: figures.plot_gradient_flow(norms(steps=[0], seeds=3)),
    "plot_gradient_maps": lambda: figures.plot_gradient_maps(norms()),
    "plot_gate_map": lambda: figures.plot_gate_map(gates(), ["one", "two", "three"]),
    "plot_digits": lambda: figures.plot_digits(np.random.default_rng(4).uniform(size=(3, 28, 28)), [7, 0, 4]),
    "plot_gate_biases": lambda: figures.plot_gate_biases(*biases()),
    "plot_by_block": lambda: figures.plot_by_block({"plain-20": [3, 2, 1], "another": [1, 2, 3]}, "value"),
    "plot_prediction": lambda: figures.plot_prediction(*prediction(), "block", "gain", panel="init"),
    "plot_gate_limits": lambda: figures.plot_gate_limits(np.array([-9, 0, 9]), [1e-4, 0.5, 1.0], [1.0, 0.5, 1e-4]),
}
WITH_COLOUR_MAP = {"plot_gradient_maps", "plot_gate_map", "plot_digits"}
every_figure = pytest.mark.parametrize("name", FIGURES)


@functools.cache
def drawn(name):
    """The figure as SVG; a warning on the way is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return to_svg(FIGURES[name]())


def lines(axis):
    """The lines that show data, by their colour and whether they are solid; legends hold lines without data."""
    shown = [line for line in axis.lines if len(line.get_xdata())]
    found = {(to_hex(line.get_color()), line.get_linestyle() == "-"): line for line in shown}
    assert len(found) == len(shown)
    return found


def bands(axis):
    """The limits of each band by its colour: (n, 3), with columns x, lowest, highest."""
    found = {}
    for band in axis.collections:
        if isinstance(band, FillBetweenPolyCollection):
            corners = pd.DataFrame(band.get_paths()[0].vertices, columns=["x", "y"]).groupby("x")["y"]
            limits = corners.agg(["min", "max"]).reset_index().to_numpy()
            found[to_hex(band.get_facecolor()[0], keep_alpha=False)] = limits
    return found


def points(collection):
    return np.asarray(collection.get_offsets())


def assert_median_and_range(axis, rows, x, y):
    """The axis shows, in the colour of the network, the median over the rows of each x and their full range."""
    for network, part in rows.groupby("network"):
        colour = PALETTE[network.partition("-")[0]]
        over_seeds = part.groupby(x)[y]
        line = lines(axis)[colour, True]
        assert list(line.get_xdata()) == list(over_seeds.median().index)
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), over_seeds.median())
        expected = np.stack([over_seeds.median().index, over_seeds.min(), over_seeds.max()], 1)
        np.testing.assert_allclose(bands(axis)[colour], expected)
    assert len(lines(axis)) == len(bands(axis)) == rows["network"].nunique()


def test_every_plot_is_tested():
    assert {name for name, _ in inspect.getmembers(figures, inspect.isfunction) if name.startswith("plot_")} == {
        *FIGURES
    }


@every_figure
def test_a_plot_returns_one_figure_and_touches_nothing_else(name, monkeypatch, capsys):
    other, axis = plt.subplots()
    axis.plot([1, 2], [3, 4])
    other.canvas.draw()
    settings = dict(matplotlib.rcParams)
    monkeypatch.setattr(builtins, "open", lambda *_, **__: pytest.fail("a plot opened a file"))
    figure = FIGURES[name]()
    monkeypatch.undo()
    assert isinstance(figure, Figure)
    assert plt.get_fignums() == [other.number, figure.number]
    assert dict(matplotlib.rcParams) == settings
    assert not other.stale  # nothing in it has changed since it was drawn
    assert capsys.readouterr() == ("", "")


def test_figures_can_neither_load_nor_train():
    nodes = list(ast.walk(ast.parse(inspect.getsource(figures))))
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in froms if node.level} == {"style"}
    roots = {alias.name.partition(".")[0] for node in imports for alias in node.names}
    roots |= {node.module.partition(".")[0] for node in froms if not node.level}
    assert {"matplotlib", "numpy"} <= roots
    assert not roots & {"highway", "torch", "torchvision", "safetensors", "io", "os", "pathlib"}


@every_figure
def test_a_plot_is_drawn_without_a_warning(name):
    assert "<path" in drawn(name)


@every_figure
def test_all_text_has_the_colour_of_ink(name):
    texts = [text for text in FIGURES[name]().findobj(Text) if text.get_text()]
    assert texts
    assert {to_hex(text.get_color()) for text in texts} == {INK}


@pytest.mark.parametrize("name", sorted(FIGURES.keys() - WITH_COLOUR_MAP))
def test_every_colour_of_a_plot_has_one_for_the_dark_page(name):
    colours = set(re.findall(r"(?:fill|stroke): (#\w+)", drawn(name).partition("</style>")[2]))
    assert len(colours) > 2
    assert colours <= set(DARK)


@pytest.mark.parametrize("name", sorted(FIGURES.keys() - {"plot_digits"}))
def test_axes_say_what_they_show(name):
    figure = FIGURES[name]()
    outer = [axis for axis in figure.axes if axis.get_subplotspec() and axis.get_subplotspec().is_last_row()]
    assert outer
    assert all(axis.get_xlabel() for axis in outer)
    first = [axis for axis in figure.axes if axis.get_subplotspec() and axis.get_subplotspec().is_first_col()]
    labelled_rows = {"plot_test_accuracy", "plot_gate_map"}  # every row has a name of its own instead
    for axis in first:
        assert axis.get_ylabel() or (name in labelled_rows and all(tick.get_text() for tick in axis.get_yticklabels()))


@pytest.mark.parametrize("name", [name for name in FIGURES if name in WITH_COLOUR_MAP - {"plot_digits"}])
def test_colour_bars_say_what_they_show(name):
    bars = [axis for axis in FIGURES[name]().axes if axis.get_label() == "<colorbar>"]
    assert [bar.get_ylabel() for bar in bars] == [
        "L2 norm of the gradient" if name == "plot_gradient_maps" else "mean of T(x)"
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("plain-20", "plain"), ("highway-50", "highway"), ("highway", "highway"), ("residual-9", "residual"),
        ("free-41", "violet"), ("fixed-71", "ochre"), ("highway, b = -2", "highway"), ("plain 71", "plain"),
    ],
)  # fmt: skip
def test_a_network_has_the_colour_of_its_kind(name, kind):
    assert figures.network_colour(name) == PALETTE[kind]


def test_every_kind_has_a_colour_of_its_own():
    """Of the kinds of the package, which figures may not import."""
    from highway.networks import NETWORKS

    assert set(figures.KINDS) == set(NETWORKS)
    assert len(set(figures.KINDS.values())) == len(NETWORKS)


def test_an_unknown_kind_is_neutral():
    assert figures.network_colour("recurrent-3") == PALETTE["neutral"]


@pytest.mark.parametrize("split", SPLITS)
def test_curves_are_medians_and_full_ranges_of_the_split(split):
    table = history()
    figure = figures.plot_curves(table, split=split)
    grid = np.array(figure.axes).reshape(2, 2)
    for row, metric in zip(grid, ("loss", "accuracy"), strict=True):
        for axis, init in zip(row, INITS, strict=True):
            shown = table[(table["split"] == split) & (table["init"] == init)]
            assert_median_and_range(axis, shown, "epoch", metric)
    assert [axis.get_yscale() for axis in figure.axes] == ["log", "log", "linear", "linear"]
    assert [axis.get_title() for axis in grid[0]] == ["PyTorch's default", "He initialisation"]
    assert [axis.get_ylabel() for axis in grid[:, 0]] == ["loss", "accuracy"]
    assert [text.get_text() for text in grid[0, 0].get_legend().texts] == ["plain-20", "highway-20"]
    assert [axis.get_legend() for axis in figure.axes[1:]] == [None] * 3


def test_curves_show_only_the_metrics_asked_for():
    (axis,) = figures.plot_curves(history(inits=["he"]), metrics=["accuracy"]).axes
    assert axis.get_ylabel() == "accuracy"
    assert axis.get_yscale() == "linear"


def test_two_networks_of_one_kind_share_a_colour_and_differ_in_the_dash():
    (axis,) = figures.plot_curves(history(["plain-20", "plain-50", "highway-20"], ["he"]), metrics=["loss"]).axes
    assert set(lines(axis)) == {(PALETTE["plain"], True), (PALETTE["plain"], False), (PALETTE["highway"], True)}
    handles = axis.get_legend().legend_handles
    assert [text.get_text() for text in axis.get_legend().texts] == ["plain-20", "plain-50", "highway-20"]
    assert [handle.get_linestyle() == "-" for handle in handles] == [True, False, True]


def test_curves_without_initialisations_have_one_column():
    figure = figures.plot_curves(history(inits=["he"]).drop(columns="init"))
    assert [axis.get_title() for axis in figure.axes] == ["", ""]


def test_curves_of_one_history_show_every_split_in_a_colour_of_no_network():
    frame = one_history()
    figure = figures.plot_curves(frame)
    assert len(figure.axes) == 2
    for axis, metric in zip(figure.axes, ("loss", "accuracy"), strict=True):
        shown = {tuple(map(float, line.get_ydata())): colour for (colour, _), line in lines(axis).items()}
        assert set(shown) == {tuple(part[metric]) for _, part in frame.groupby("split")}
        assert len(set(shown.values())) == 3
        assert not set(shown.values()) & {PALETTE[kind] for kind in ("plain", "highway", "residual")}
    handles = figure.axes[0].get_legend().legend_handles
    names = [text.get_text() for text in figure.axes[0].get_legend().texts]
    for name, handle in zip(names, handles, strict=True):
        line = lines(figure.axes[0])[to_hex(handle.get_color()), True]
        assert list(line.get_ydata()) == list(frame.loc[frame["split"] == name, "loss"])
    assert sorted(names) == ["running", "train", "validation"]


def test_an_unknown_split_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'holdout'.*\['test', 'train', 'validation'\]"):
        figures.plot_curves(history(), split="holdout")


def test_an_empty_history_is_refused():
    with pytest.raises(ValueError, match="no row of the history"):
        figures.plot_curves(History().frame())


def test_every_run_is_one_point_of_the_test_accuracy():
    table = history()
    figure = figures.plot_test_accuracy(table)
    tests = table[table["split"] == "test"]
    rows = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert rows == ["plain-20", "highway-20"]
    for axis, init in zip(figure.axes, INITS, strict=True):
        shown = []
        for part in axis.collections:
            colours = np.broadcast_to(part.get_facecolor(), (len(points(part)), 4))
            shown += [(x, rows[round(y)], to_hex(c)) for (x, y), c in zip(points(part), colours, strict=True)]
        part = tests[tests["init"] == init]
        expected = [(row.accuracy, row.network, figures.network_colour(row.network)) for row in part.itertuples()]
        assert sorted(shown) == sorted(expected)


def test_the_chosen_rate_is_ringed_in_the_colour_of_the_network():
    table = tuning()
    figure = figures.plot_rate_search(table)
    for axis, init in zip(figure.axes, INITS, strict=True):
        rings = {
            (*map(float, points(part)[0]), to_hex(part.get_edgecolor()[0]))
            for part in axis.collections
            if not len(part.get_facecolor())
        }
        best = table[(table["init"] == init) & table["chosen"]]
        assert rings == {(row.rate, row.accuracy, figures.network_colour(row.network)) for row in best.itertuples()}
        assert axis.get_xscale() == "log"
        for network in ("plain-20", "highway-20"):
            line = lines(axis)[figures.network_colour(network), True]
            part = table[(table["init"] == init) & (table["network"] == network)]
            assert list(line.get_xdata()) == list(part["rate"])
            assert list(line.get_ydata()) == list(part["accuracy"])


def test_rates_are_searched_by_depth_too():
    table = tuning().assign(depth=lambda rows: rows["init"].map(dict(zip(INITS, (20, 50), strict=True))))
    by_depth, by_init = figures.plot_rate_search(table, panel="depth"), figures.plot_rate_search(table)
    assert [axis.get_title() for axis in by_depth.axes] == ["20 blocks", "50 blocks"]
    for axis, same in zip(by_depth.axes, by_init.axes, strict=True):
        assert [line.get_xydata().tolist() for line in axis.lines] == [
            line.get_xydata().tolist() for line in same.lines
        ]
        assert [points(part).tolist() for part in axis.collections] == [
            points(part).tolist() for part in same.collections
        ]
    (legend,) = by_depth.legends
    assert [text.get_text() for text in legend.texts] == ["plain-20", "highway-20"]


def test_gradient_flow_takes_a_mapping():
    (axis,) = figures.plot_gradient_flow({"plain-20": [1e-9, 1e-4, 1.0], "highway-20": [0.1, 0.2]}, "At the start").axes
    assert axis.get_yscale() == "log"
    assert axis.figure.get_suptitle() == "At the start"
    plain, highway = lines(axis)[PALETTE["plain"], True], lines(axis)[PALETTE["highway"], True]
    assert (list(plain.get_xdata()), list(plain.get_ydata())) == ([0, 1, 2], [1e-9, 1e-4, 1.0])
    assert (list(highway.get_xdata()), list(highway.get_ydata())) == ([0, 1], [0.1, 0.2])


def test_gradient_flow_takes_a_frame_with_seeds_and_initialisations():
    table = norms(steps=[0], seeds=3)
    figure = figures.plot_gradient_flow(table)
    for axis, init in zip(figure.axes, INITS, strict=True):
        assert_median_and_range(axis, table[table["init"] == init], "layer", "norm")
        assert axis.get_yscale() == "log"
        assert axis.get_title() == figures.INIT_TITLES[init]


def test_gradient_maps_hold_the_norms_on_one_log_scale():
    table = norms()
    figure = figures.plot_gradient_maps(table)
    grid = np.array([axis for axis in figure.axes if axis.get_label() != "<colorbar>"]).reshape(2, 2)
    for row, network in zip(grid, ("plain-20", "highway-20"), strict=True):
        for axis, init in zip(row, INITS, strict=True):
            (image,) = axis.images
            part = table[(table["network"] == network) & (table["init"] == init)]
            expected = part.set_index(["layer", "step"])["norm"].unstack()
            np.testing.assert_array_equal(image.get_array(), expected)
            assert image.origin == "lower"
            assert axis.get_title() == f"{network}, {figures.INIT_TITLES[init]}"
            assert (image.norm.vmin, image.norm.vmax) == (table["norm"].min(), table["norm"].max())
            assert isinstance(image.norm, matplotlib.colors.LogNorm)


def test_the_updates_of_gradient_maps_are_named_where_they_stand():
    figure = figures.plot_gradient_maps(norms())
    ticks = {round(t.get_position()[0]): t.get_text() for t in figure.axes[-2].get_xticklabels()}
    assert ticks == {0: "0", 4: "10", 7: "100"}


def test_a_vanished_gradient_has_the_darkest_colour_of_the_map():
    table = norms()
    smallest = table["norm"].min()
    table.loc[(table["network"] == "plain-20") & (table["layer"] == 0), "norm"] = 0.0
    image = figures.plot_gradient_maps(table).axes[0].images[0]
    assert (image.get_array()[0] == image.norm.vmin).all()
    assert image.norm.vmin >= smallest


def test_a_gate_map_holds_the_gates_with_named_rows():
    axis, bar = figures.plot_gate_map(gates(), ["one", "two", "three"], label="T").axes
    (image,) = axis.images
    np.testing.assert_array_equal(image.get_array(), gates())
    assert image.norm.vmin == 0
    assert image.get_extent() == [0.5, 5.5, 2.5, -0.5]  # block 1 is the first column, row 0 the uppermost
    assert [(t.get_position()[1], t.get_text()) for t in axis.get_yticklabels()] == [
        (0, "one"),
        (1, "two"),
        (2, "three"),
    ]
    assert (axis.get_xlabel(), bar.get_ylabel()) == ("block", "T")


def test_a_gate_map_of_many_rows_says_what_they_are():
    axis = figures.plot_gate_map(gates(), ["units"]).axes[0]
    assert axis.get_ylabel() == "units"
    assert not len(axis.get_yticks())


@pytest.mark.parametrize("n", [1, 3])
def test_digits_stand_under_their_labels(n):
    images = np.random.default_rng(5).uniform(size=(n, 28, 28))
    figure = figures.plot_digits(images, list(range(7, 7 + n)))
    assert len(figure.axes) == n
    for axis, image, label in zip(figure.axes, images, range(7, 7 + n), strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), image)
        assert axis.get_title() == str(label)


def test_digits_and_labels_must_agree_in_number():
    with pytest.raises(ValueError, match="zip"):
        figures.plot_digits(np.zeros((3, 28, 28)), [1, 2])


def test_every_gate_bias_is_one_point_of_its_block():
    before, after = biases()
    (axis,) = figures.plot_gate_biases(before, after).axes
    shown = points(axis.collections[0])
    np.testing.assert_array_equal(shown[:, 1], after.ravel())
    np.testing.assert_array_equal(shown[:, 0].round(), np.repeat([1, 2, 3, 4], 6))
    assert to_hex(axis.collections[0].get_facecolor()[0]) == PALETTE["highway"]
    median = lines(axis)[INK, True]
    assert list(median.get_xdata()) == [1, 2, 3, 4]
    np.testing.assert_array_equal(median.get_ydata(), np.median(after, axis=1))
    assert set(lines(axis)[PALETTE["ochre"], False].get_ydata()) == {-2.0}
    names = [text.get_text() for legend in axis.figure.legends for text in legend.texts]
    assert names == ["a unit, after training", "median of the block", "before training"]


@pytest.mark.parametrize(("log", "scale"), [(False, "linear"), (True, "log")])
def test_values_by_block_start_at_the_block_given(log, scale):
    series = {"highway-20": [3.0, 2.0, 1.0], "gate": [1.0, 2.0], "plain-20": [5.0]}
    (axis,) = figures.plot_by_block(series, "value", first=0, log=log).axes
    shown = {line.get_label(): line for line in axis.lines}
    for name, values in series.items():
        assert list(shown[name].get_xdata()) == list(range(len(values)))
        assert list(shown[name].get_ydata()) == values
    assert [shown[name].get_color() for name in ("highway-20", "plain-20")] == [PALETTE["highway"], PALETTE["plain"]]
    assert shown["gate"].get_color() in figures.OTHERS
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_yscale()) == ("block", "value", scale)
    assert [text.get_text() for text in axis.get_legend().texts] == list(series)
    assert log or axis.get_ylim()[0] == 0


def test_blocks_are_counted_from_one():
    (axis,) = figures.plot_by_block({"gate": [0.1, 0.2]}, "value").axes
    assert list(axis.lines[0].get_xdata()) == [1, 2]


def test_gate_limits_show_both_distances():
    to_input, to_candidate = [1e-4, 0.5, 1.0], [1.0, 0.4, 1e-5]
    (axis,) = figures.plot_gate_limits(np.array([-9, 0, 9]), to_input, to_candidate).axes
    shown = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert shown == {"largest |y - x|": to_input, "largest |y - H|": to_candidate}
    assert axis.get_yscale() == "log"
    assert {tuple(line.get_xdata()) for line in axis.lines} == {(-9, 0, 9)}


@pytest.mark.parametrize("panel", [None, "init"])
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_a_prediction_lies_as_dots_upon_what_was_measured(panel, log, seeds):
    measured, predicted = prediction(seeds)
    if panel is None:
        measured, predicted = (frame[frame["init"] == "he"] for frame in (measured, predicted))
    figure = figures.plot_prediction(measured, predicted, "block", "gain", log=log, panel=panel)
    colours = {"plain-20": PALETTE["plain"], "highway, b = -2": PALETTE["highway"], "bound": figures.OTHERS[0]}
    assert [axis.get_title() for axis in figure.axes] == (list(INITS) if panel else [""])
    for axis, init in zip(figure.axes, INITS if panel else ["he"], strict=True):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("block", "gain" if axis is figure.axes[0] else "")
        assert axis.get_yscale() == ("log" if log else "linear")
        drawn = [line for line in axis.lines if len(line.get_xdata())]
        dots = {to_hex(line.get_markeredgecolor()): line for line in drawn if line.get_marker() == "o"}
        solid = {to_hex(line.get_color()): line for line in drawn if line.get_linestyle() == "-"}
        assert len(drawn) == len(dots) + len(solid) == 6
        for name, colour in colours.items():
            here, there = (
                frame[(frame["init"] == init) & (frame["series"] == name)] for frame in (measured, predicted)
            )
            over_seeds = here.groupby("x")["value"]
            np.testing.assert_allclose(np.asarray(solid[colour].get_ydata(), float), over_seeds.median())
            limits = np.stack([over_seeds.median().index, over_seeds.min(), over_seeds.max()], 1)
            if seeds > 1:
                np.testing.assert_allclose(bands(axis)[colour], limits)
            assert dots[colour].get_linestyle() == "None"
            assert list(dots[colour].get_xdata()) == list(there["x"])
            assert list(dots[colour].get_ydata()) == list(there["value"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == [*colours, "predicted"]
    assert [to_hex(handle.get_color()) for handle in legend.legend_handles[:3]] == list(colours.values())
    assert all(axis.get_legend() is None for axis in figure.axes)


def test_series_of_one_kind_differ_in_the_dash():
    measured, _ = prediction()
    names = {"plain-20": "highway, b = -2", "highway, b = -2": "highway, b = -ln L"}
    measured = measured.replace({"series": names})
    (axis,) = figures.plot_prediction(measured, measured[:0], "block", "gain").axes
    assert set(lines(axis)) == {(PALETTE["highway"], True), (PALETTE["highway"], False), (figures.OTHERS[0], True)}


def test_of_many_predicted_points_about_a_dozen_are_drawn():
    measured = pd.DataFrame({"series": "plain", "seed": 0, "x": range(100), "value": np.arange(1.0, 101)})
    (axis,) = figures.plot_prediction(measured, measured, "block", "gain").axes
    (dots,) = (line for line in axis.lines if line.get_marker() == "o" and len(line.get_xdata()))
    assert 12 <= len(dots.get_xdata()) <= 24
    np.testing.assert_array_equal(np.asarray(dots.get_xdata()) + 1, dots.get_ydata())


@pytest.mark.parametrize("plot", [figures.plot_curves, figures.plot_gradient_flow])
def test_the_median_of_an_even_number_of_seeds_is_that_of_the_numbers_in_every_column(plot):
    if plot is figures.plot_curves:
        table, x, y = history(seeds=2), "epoch", "loss"
        shown = table[table["split"] == "validation"]
    else:
        table, x, y = norms(steps=[0], seeds=2), "layer", "norm"
        shown = table
    for axis, init in zip(plot(table).axes, ("default", "he"), strict=False):
        assert_median_and_range(axis, shown[shown["init"] == init], x, y)
        assert axis.get_yscale() == "log"


def test_points_of_the_test_accuracy_lie_the_same_in_every_build():
    np.random.seed(0)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    assert to_svg(figures.plot_test_accuracy(history())) == to_svg(figures.plot_test_accuracy(history()))
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_no_series_by_block_is_left_out():
    (axis,) = figures.plot_by_block({name: [1.0, 2.0] for name in "abcdefg"}, "value").axes
    assert [line.get_label() for line in axis.lines] == list("abcdefg")
    looks = {
        (line.get_color(), line._unscaled_dash_pattern[1] and tuple(line._unscaled_dash_pattern[1]))
        for line in axis.lines
    }
    assert len(looks) == 7


def test_a_history_of_four_splits_can_be_drawn():
    frame = pd.DataFrame(
        [(s, e, 1.0 + e, 0.5) for s in ("running", "train", "validation", "test") for e in (0, 1)],
        columns=["split", "epoch", "loss", "accuracy"],
    )
    assert len({handle.get_color() for handle in figures.plot_curves(frame).axes[0].get_legend().legend_handles}) == 4


@pytest.mark.parametrize(
    ("plot", "nothing"),
    [
        (figures.plot_test_accuracy, history()[:0]),
        (figures.plot_gradient_flow, {}),
        (figures.plot_gradient_flow, norms()[:0]),
        (figures.plot_gradient_maps, norms()[:0]),
        (figures.plot_rate_search, pd.DataFrame(columns=["network", "init", "rate", "accuracy", "chosen"])),
        (lambda rows: figures.plot_prediction(rows, rows, "x", "y"), prediction()[0][:0]),
        (lambda images: figures.plot_digits(images, []), np.empty((0, 28, 28))),
    ],
)
def test_nothing_cannot_be_drawn_and_leaves_no_figure(plot, nothing):
    before = figures.plt.get_fignums()
    with pytest.raises(ValueError, match="nothing to plot"):
        plot(nothing)
    assert figures.plt.get_fignums() == before
