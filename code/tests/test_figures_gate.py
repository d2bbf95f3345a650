"""The figure of the chapter "The gate" shows the data that it was given."""

import numpy as np
import pytest

from highway.figures_gate import FLOOR, plot_gate_and_carry
from highway.probes import carry_product
from highway.style import INK, PALETTE

Z = np.linspace(-10, 4, 57)


pytestmark = pytest.mark.usefixtures("book_style")


def gate(z):
    return 1 / (1 + np.exp(-np.asarray(z, dtype=float)))


def drawn(biases=(0, -2, -4), depth=20):
    carried = {b: [carry_product(b, n) for n in range(depth + 1)] for b in biases}
    return plot_gate_and_carry(Z, gate(Z), {b: float(gate(b)) for b in biases}, carried), carried


def test_the_curve_and_its_points_are_the_data():
    left = drawn()[0].axes[0]
    curve, *points = left.get_lines()
    np.testing.assert_array_equal(curve.get_xydata(), np.column_stack([Z, gate(Z)]))
    assert curve.get_color() == INK
    assert [tuple(p.get_xydata()[0]) for p in points] == [(b, gate(b)) for b in (0, -2, -4)]


def test_the_carry_products_are_the_data_on_a_log_axis():
    figure, carried = drawn()
    right = figure.axes[1]
    assert right.get_yscale() == "log"
    assert right.get_ylim()[0] == FLOOR
    for line, values in zip(right.get_lines(), carried.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(21))
        np.testing.assert_array_equal(line.get_ydata(), values)


def test_a_bias_has_one_look_in_both_panels_and_its_name_in_the_legend():
    figure, _ = drawn()
    left, right = figure.axes
    points, lines = left.get_lines()[1:], right.get_lines()
    looks = [(line.get_color(), line.get_marker()) for line in lines]
    assert [(p.get_color(), p.get_marker()) for p in points] == looks
    assert len(set(looks)) == 3
    assert {colour for colour, _ in looks} <= set(PALETTE.values())
    assert len({line.get_linestyle() for line in lines} | {str(line._dash_pattern) for line in lines}) >= 3
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["b = 0", "b = \u22122", "b = \u22124"]


@pytest.mark.parametrize(("gates", "carried"), [({}, {}), ({0: 0.5}, {-2: [1.0]}), ({0: 0.5}, {})])
def test_biases_that_do_not_match_are_named(gates, carried):
    with pytest.raises(ValueError, match="the same biases"):
        plot_gate_and_carry(Z, gate(Z), gates, carried)
