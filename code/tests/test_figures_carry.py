"""The plot of the chapter on the carry gate shows the data it was given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from highway import figures_carry
from highway.figures import network_colour

NETWORKS = ("highway-50", "free-41", "plain-71")
RATES = (0.01, 0.03, 0.1)


pytestmark = pytest.mark.usefixtures("book_style")


def tuning(inits=("he",), depths=(20, 50)):
    rng = np.random.default_rng(0)
    rows = [
        (network, init, depth, rate, rng.uniform(), rate == 0.03)
        for init in inits for depth in depths for network in NETWORKS for rate in RATES
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["network", "init", "depth", "rate", "accuracy", "chosen"])


def panels(table):
    return [
        (depth, init, table[(table["depth"] == depth) & (table["init"] == init)])
        for init in dict.fromkeys(table["init"]) for depth in dict.fromkeys(table["depth"])
    ]  # fmt: skip


@pytest.mark.parametrize("inits", [("he",), ("default", "he")])
def test_rates_by_depth(inits):
    table = tuning(inits)
    figure = figures_carry.plot_rates_by_depth(table.sample(frac=1, random_state=0).sort_values(["init", "depth"]))
    assert len(figure.axes) == 2 * len(inits)
    for axis, (depth, init, part) in zip(figure.axes, panels(table), strict=True):
        assert axis.get_title().startswith(f"{depth} blocks")
        assert ("He" in axis.get_title()) == (init == "he" and len(inits) == 2)
        assert axis.get_xscale() == "log"
        assert axis.get_ylim()[0] < 0, "a run that diverged is seen"
        lines = {to_hex(line.get_color()): line for line in axis.lines}
        rings = {to_hex(ring.get_edgecolor()[0]): ring.get_offsets() for ring in axis.collections}
        for network in NETWORKS:
            rows = part[part["network"] == network]
            line = lines[network_colour(network)]
            assert line.get_xdata() == pytest.approx(RATES)
            assert line.get_ydata() == pytest.approx(rows["accuracy"].to_numpy())
            ring = rings[network_colour(network)]
            assert ring.tolist() == [pytest.approx(rows.loc[rows["chosen"], ["rate", "accuracy"]].iloc[0].tolist())]
    (legend,) = figure.legends
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(NETWORKS)
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        assert to_hex(handle.get_color()) == network_colour(text.get_text())


def test_nothing_to_plot_is_said():
    with pytest.raises(ValueError, match="nothing to plot"):
        figures_carry.plot_rates_by_depth(tuning()[:0])
