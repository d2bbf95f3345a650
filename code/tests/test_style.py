"""The palette keeps its contrast on both pages, and a figure becomes one SVG that carries both themes."""

import re
import sys
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from highway.style import DARK, DIVERGING, GRID, INK, PALETTE, PAPER, SEQUENTIAL, to_svg, use_book_style


@pytest.fixture(autouse=True)
def no_window():
    """Draw without a window, and leave no figure and no setting behind."""
    plt.switch_backend("agg")
    with matplotlib.rc_context():
        yield
    plt.close("all")
    plt.switch_backend("agg")


@pytest.fixture
def book_style():
    use_book_style()


def contrast(one, other):
    """The contrast ratio of two colours by the Web Content Accessibility Guidelines, from 1 to 21."""

    def luminance(colour):
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def drawn(colours):
    """A figure with a line, drawn as a stroke, and a bar, drawn as a fill, of each colour."""
    figure, axis = plt.subplots()
    for place, colour in enumerate(colours):
        axis.plot([0, 1], [place, place], color=colour)
        axis.bar([place], [1], color=colour)
    axis.set_title("Colours")
    return figure


def dark_rules(svg):
    """The exchange of colours in the media query: (property, light) -> dark."""
    query = re.search(r"<style>@media \(prefers-color-scheme: dark\)\{((?:[^{}]*\{[^{}]*\})*)\}</style>", svg)
    rule = r'\[style\*="(fill|stroke): (#\w{6})"\]\{(fill|stroke):(#\w{6})!important\}'
    assert re.sub(rule, "", query[1]) == ""
    found = re.findall(rule, query[1])
    assert all(matched == set_ for matched, _, set_, _ in found)
    return {(part, light): dark for part, light, _, dark in found}


def test_contrast_is_measured_as_the_guidelines_say():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("name", PALETTE)
def test_every_colour_stands_out_on_both_pages(name):
    assert contrast(PALETTE[name], PAPER) >= 3
    assert contrast(DARK[PALETTE[name]], DARK[PAPER]) >= 3


def test_text_can_be_read_on_both_pages():
    assert contrast(INK, PAPER) >= 7
    assert contrast(DARK[INK], DARK[PAPER]) >= 7


def test_every_colour_has_one_of_its_own_for_the_dark_page():
    assert set(DARK) == {*PALETTE.values(), PAPER, INK, GRID}
    assert len(set(DARK.values())) == len(DARK) == len(PALETTE) + 3
    assert not set(DARK) & set(DARK.values())


def test_the_colour_maps_exist():
    assert {SEQUENTIAL, DIVERGING} <= set(matplotlib.colormaps)


def test_figures_take_the_style_of_the_book():
    use_book_style()
    figure, axis = plt.subplots()
    lines = [axis.plot([0, 1])[0] for _ in PALETTE]
    assert [line.get_color() for line in lines] == list(PALETTE.values())
    assert to_rgb(figure.get_facecolor()) == to_rgb(axis.get_facecolor()) == to_rgb(PAPER)
    assert {axis.xaxis.label.get_color(), axis.title.get_color(), axis.get_xticklabels()[0].get_color()} == {INK}
    assert axis.get_xgridlines()[0].get_color() == GRID
    assert not axis.spines["top"].get_visible()
    assert not axis.spines["right"].get_visible()
    assert figure.get_constrained_layout()
    assert matplotlib.rcParams["image.cmap"] == SEQUENTIAL


@pytest.mark.usefixtures("book_style")
def test_a_figure_made_again_gives_the_same_bytes():
    assert to_svg(drawn(PALETTE.values())) == to_svg(drawn(PALETTE.values()))


@pytest.mark.usefixtures("book_style")
def test_the_dark_page_exchanges_every_colour_in_use():
    rules = dark_rules(to_svg(drawn(PALETTE.values())))
    expected = {(part, colour): DARK[colour] for part in ("fill", "stroke") for colour in PALETTE.values()}
    assert expected.items() <= rules.items()
    assert rules["fill", PAPER] == DARK[PAPER]
    assert rules["fill", INK] == DARK[INK]
    assert rules["stroke", GRID] == DARK[GRID]


@pytest.mark.usefixtures("book_style")
def test_the_dark_page_says_nothing_of_colours_that_are_not_in_use():
    rules = dark_rules(to_svg(drawn([PALETTE["plain"]])))
    assert {light for _, light in rules} == {PALETTE["plain"], PAPER, INK, GRID}


@pytest.mark.usefixtures("book_style")
def test_the_svg_is_whole_and_asks_nothing_of_another_host():
    svg = to_svg(drawn(PALETTE.values()))
    assert svg.startswith("<svg")
    root = ElementTree.fromstring(svg)
    shown = [node for node in root if not node.tag.endswith("metadata")]
    inside = "".join(ElementTree.tostring(node, encoding="unicode") for node in shown)
    assert len(inside) > 1000
    hosts = re.findall(r"(?<!xmlns)(?<!xmlns:ns\d)=\"[^\"]*//[^\"]*|url\(['\"]?\w+:|@import|<script", inside)
    assert hosts == []


@pytest.mark.usefixtures("book_style")
def test_the_svg_needs_no_font_of_the_reader():
    svg = to_svg(drawn([PALETTE["plain"]]))
    assert "<text" not in svg
    assert "font-family" not in svg


@pytest.mark.parametrize("absent", [True, False])
def test_the_style_works_outside_ipython(monkeypatch, absent):
    if absent:
        monkeypatch.setitem(sys.modules, "IPython", None)
    use_book_style()
    assert matplotlib.rcParams["figure.facecolor"] == PAPER
    assert plt.get_backend().lower() == "agg"


def test_a_cell_shows_its_figure_once_and_as_svg_alone(monkeypatch, tmp_path):
    from IPython.core.history import HistoryManager
    from IPython.core.interactiveshell import InteractiveShell

    class Shell(InteractiveShell):
        def enable_gui(self, gui=None):
            """No window to keep alive, as in a notebook's kernel."""

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr(HistoryManager, "enabled", False)
    shell = Shell.instance()
    try:
        use_book_style()
        figure = drawn([PALETTE["highway"]])
        data, _ = shell.display_formatter.format(figure)
        assert set(data) == {"image/svg+xml", "text/plain"}
        assert dark_rules(data["image/svg+xml"])["stroke", PALETTE["highway"]] == DARK[PALETTE["highway"]]
        assert not plt.fignum_exists(figure.number)
        assert matplotlib.rcParams["figure.facecolor"] == PAPER
    finally:
        Shell.clear_instance()
