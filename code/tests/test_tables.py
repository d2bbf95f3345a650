"""The tables of the book: what stands in each cell, and what `glue` hands to the prose."""

import sys

import numpy as np
import pandas as pd
import pytest

from highway import tables


def history(diverged=()):
    """Three seeds of two networks and two epochs, the second the worse; a run in `diverged` has only the first."""
    rows = []
    for network, shift in (("plain-20", 0.0), ("highway-20", 0.25)):
        for seed in (5, 1, 3):
            last = 0 if (network, seed) in diverged else 1
            for epoch in range(last + 1):
                level = 0.1 * seed + shift
                for split in ("train", "validation", "test"):
                    if split != "test" or epoch == 1:
                        rows.append(
                            (network, "he", 0.03, seed, epoch, split, level / 2 + 0.01 * epoch, level - 0.01 * epoch)
                        )
    return pd.DataFrame(rows, columns=["network", "init", "rate", "seed", "epoch", "split", "loss", "accuracy"])


def test_median_and_range_is_rounded_to_the_digits_asked_for():
    assert tables.median_and_range([3, 1, 2.0449], 2) == "2.04 (1.00 to 3.00)"
    assert tables.median_and_range([1, 2], 1) == "1.5 (1.0 to 2.0)"


def test_median_and_range_in_per_cent():
    assert tables.median_and_range(iter([0.9812, 0.975, 0.9]), 1, percent=True) == "97.5 (90.0 to 98.1)"


def test_the_median_of_nothing_is_none():
    assert tables.median_and_range([], 2) == "none"


def test_final_values_are_those_of_the_last_epoch_by_run():
    values = tables.final_values(history(), "validation", "accuracy")
    assert list(values.index) == [(name, "he", 0.03, seed) for name in ("plain-20", "highway-20") for seed in (5, 1, 3)]
    assert list(values) == pytest.approx([0.49, 0.09, 0.29, 0.74, 0.34, 0.54])
    assert list(tables.final_values(history(), "train", "loss"))[:3] == pytest.approx([0.26, 0.06, 0.16])


def test_the_summary_has_a_row_a_network_in_the_order_of_the_history():
    table = tables.summary(history())
    assert table.to_dict("records") == [
        {
            "network": "plain-20",
            "initialisation": "he",
            "rate": "0.03",
            "finished": "3 of 3",
            "training loss": "0.1600 (0.0600 to 0.2600)",
            "validation accuracy, %": "29.00 (9.00 to 49.00)",
            "test accuracy, %": "29.00 (9.00 to 49.00)",
        },
        {
            "network": "highway-20",
            "initialisation": "he",
            "rate": "0.03",
            "finished": "3 of 3",
            "training loss": "0.2850 (0.1850 to 0.3850)",
            "validation accuracy, %": "54.00 (34.00 to 74.00)",
            "test accuracy, %": "54.00 (34.00 to 74.00)",
        },
    ]


def test_a_diverged_run_counts_as_not_finished_and_in_no_median():
    table = tables.summary(history(diverged={("plain-20", 5)})).set_index("network")
    assert list(table["finished"]) == ["2 of 3", "3 of 3"]
    assert table.loc["plain-20", "training loss"] == "0.1100 (0.0600 to 0.1600)"
    assert table.loc["plain-20", "validation accuracy, %"] == "19.00 (9.00 to 29.00)"
    assert table.loc["plain-20", "test accuracy, %"] == "19.00 (9.00 to 29.00)"
    assert table.loc["highway-20", "test accuracy, %"] == "54.00 (34.00 to 74.00)"


def test_a_network_of_which_every_run_diverged_has_no_values():
    table = tables.summary(history(diverged={("plain-20", seed) for seed in (1, 3, 5)})).set_index("network")
    assert table.loc["plain-20", "finished"] == "0 of 3"
    assert set(table.loc["plain-20"].iloc[-3:]) == {"none"}


def test_initialisations_have_rows_of_their_own():
    both = pd.concat([history(), history().assign(init="default", rate=0.1)])
    table = tables.summary(both)
    assert list(table["initialisation"]) == ["he", "he", "default", "default"]
    assert list(table["rate"]) == ["0.03", "0.03", "0.1", "0.1"]


def networks_of_one_name():
    """Highway networks of two depths and two gate biases, and plain ones of two depths; a value tells each apart."""
    parts = []
    for network, depth, bias in (
        ("highway-20", 10, -2.0), ("highway-20", 10, -2.3026), ("highway-20", 20, -2.0), ("plain-20", 10, np.nan),
        ("plain-20", 20, np.nan),
    ):  # fmt: skip
        one = history()[lambda rows: rows["network"] == "plain-20"]
        shift = 0.01 * len(parts)
        parts.append(
            one.assign(network=network, depth=depth, gate_bias=bias, rate=0.1, accuracy=one["accuracy"] + shift)
        )
    return pd.concat(parts, ignore_index=True)


def test_networks_of_one_name_are_told_apart_by_depth_and_gate_bias():
    table = tables.summary(networks_of_one_name())
    assert list(table.columns)[:4] == ["network", "initialisation", "depth", "gate bias"]
    assert table[["network", "depth", "gate bias"]].to_numpy().tolist() == [
        ["highway-20", "10", "-2"], ["highway-20", "10", "-2.3"], ["highway-20", "20", "-2"],
        ["plain-20", "10", "none"], ["plain-20", "20", "none"],
    ]  # fmt: skip
    assert set(table["finished"]) == {"3 of 3"}
    assert [cell.split()[0] for cell in table["test accuracy, %"]] == ["29.00", "30.00", "31.00", "32.00", "33.00"]
    values = tables.final_values(networks_of_one_name(), "test", "accuracy")
    assert len(values) == 5 * 3
    assert list(values)[:4] == pytest.approx([0.49, 0.09, 0.29, 0.50])


@pytest.mark.parametrize(("column", "heading"), [("depth", "depth"), ("gate_bias", "gate bias")])
def test_only_what_tells_networks_apart_has_a_column(column, heading):
    one = history().assign(depth=20, gate_bias=-2.0)
    assert list(tables.summary(one).columns) == list(tables.summary(history()).columns)
    both = pd.concat([one, one.assign(**{column: -10.0})])
    table = tables.summary(both)
    assert set(table.columns) - set(tables.summary(one).columns) == {heading}
    assert sorted(table[heading]) == sorted(["20" if column == "depth" else "-2", "-10"] * 2)


def test_networks_that_differ_in_name_alone_need_no_column():
    mixed = history().assign(gate_bias=np.where(history()["network"] == "plain-20", np.nan, -2.0), depth=20)
    assert list(tables.summary(mixed)["network"]) == ["plain-20", "highway-20"]
    assert not {"depth", "gate bias"} & set(tables.summary(mixed).columns)


def test_the_rate_table_stars_the_chosen_rate_and_names_a_divergence():
    rows = [
        ("plain-20", "he", 0.1, 0.1135, False),
        ("plain-20", "he", 0.003, 0.9, True),
        ("highway-20", "he", 0.1, 0.98765, True),
        ("highway-20", "he", 0.003, 0.0, False),
    ]
    tuning = pd.DataFrame(rows, columns=["network", "init", "rate", "accuracy", "chosen"])
    assert tables.rate_table(tuning).to_dict("records") == [
        {"network": "plain-20, he", "0.003": "90.00 *", "0.1": "11.35"},
        {"network": "highway-20, he", "0.003": "diverged", "0.1": "98.77 *"},
    ]
    assert list(tuning["network"]) == ["plain-20", "plain-20", "highway-20", "highway-20"]


def test_the_rate_table_holds_rates_in_rising_order():
    rates = [1.0, 0.003, 0.3, 0.01]
    tuning = pd.DataFrame({"network": "a", "init": "he", "rate": rates, "accuracy": 0.5, "chosen": False})
    assert list(tables.rate_table(tuning).columns) == ["network", "0.003", "0.01", "0.3", "1"]


def test_the_gate_table_has_a_row_a_block_and_a_column_an_example():
    table = tables.gate_table(np.array([[0.06, 0.1234], [0.9996, 0.5], [0, 1]]), ["zero", "one", "two"])
    assert table.to_dict("list") == {
        "block": [1, 2],
        "zero": ["0.060", "0.123"],
        "one": ["1.000", "0.500"],
        "two": ["0.000", "1.000"],
    }


def test_the_bias_table_compares_before_and_after():
    before = np.full((2, 4), -2.0)
    after = np.array([[-3.0, -2.5, -2.0, -1.5], [-1.0, -1.0, -1.0, -4.126]])
    assert tables.bias_table(before, after).to_dict("list") == {
        "block": [1, 2],
        "before": ["-2.00", "-2.00"],
        "after: mean": ["-2.25", "-1.78"],
        "smallest": ["-3.00", "-4.13"],
        "largest": ["-1.50", "-1.00"],
        "units that fell": ["2 of 4", "1 of 4"],
    }


def test_the_ledger_says_how_each_result_came_about():
    record = {
        "name": "depth20",
        "title": "Twenty blocks",
        "date": "2025-03-04T05:06:07+00:00",
        "processor": "a processor",
        "threads": 2,
        "seeds": [0, 1, 2],
        "wall_seconds": 100.0,
        "versions": {"torch": "2.6.0", "python": "3.11"},
    }
    assert tables.ledger(iter([record, record | {"name": "other"}])).to_dict("records") == [
        {
            "experiment": name,
            "what": "Twenty blocks",
            "when": "2025-03-04",
            "where": "a processor, torch 2.6.0",
            "minutes": "2",
            "repeat": f"`highway run {name}`",
        }
        for name in ("depth20", "other")
    ]


def test_markdown_leaves_cells_as_they_are_written():
    table = pd.DataFrame({"digits": ["0.060", "-2.00"], "words": ["1e-3 a", "two"], "count": [1, 1000]}, index=[7, 8])
    head, rule, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in tables.markdown(table).splitlines()
    )
    assert head == ["digits", "words", "count"]
    assert rows == [["0.060", "1e-3 a", "1"], ["-2.00", "two", "1000"]]
    assert [(cell[0], cell[-1]) for cell in rule] == [("-", ":"), (":", "-"), ("-", ":")]


def test_one_word_puts_a_column_to_the_left():
    rule = tables.markdown(pd.DataFrame({"value": ["0.1", "much"]})).splitlines()[1]
    assert rule.startswith("|:-")


def test_a_run_that_diverged_stands_among_numbers():
    rule = tables.markdown(pd.DataFrame({"value": ["0.1", "diverged"]})).splitlines()[1]
    assert rule.endswith("-:|")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.1e-8, 1, "2.1\u00a0×\u00a010⁻⁸"),
        (-2.14e-8, 1, "-2.1\u00a0×\u00a010⁻⁸"),
        (3.14159, 2, "3.14\u00a0×\u00a010⁰"),
        (65432.1, 0, "7\u00a0×\u00a010⁴"),
        (1.5e-12, 1, "1.5\u00a0×\u00a010⁻¹²"),
        (9.96e36, 1, "1.0\u00a0×\u00a010³⁷"),
        (0.0, 1, "0.0\u00a0×\u00a010⁰"),
    ],
)
def test_scientific_is_written_as_in_prose(value, digits, text):
    assert tables.scientific(value, digits) == text


@pytest.fixture
def glued(monkeypatch):
    """What is handed to the book, by its name."""
    found = {}

    def put(name, value, display):
        found[name] = (value, display)

    monkeypatch.setattr("myst_nb.glue", put)
    return found


@pytest.mark.parametrize("value", ["97.5 (90.0 to 98.1)", 12, 0.5])
def test_a_value_is_glued_as_it_is_and_not_shown(glued, capsys, value):
    tables.glue("name", value)
    assert glued == {"name": (value, False)}
    assert capsys.readouterr().out == ""


def test_a_table_is_glued_as_markdown(glued):
    from IPython.display import Markdown

    table = pd.DataFrame({"a": ["0.060"], "b": ["x"]})
    tables.glue("table", table)
    value, display = glued["table"]
    assert isinstance(value, Markdown)
    assert (value.data, display) == (tables.markdown(table), False)


def test_without_the_book_a_value_is_printed(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "myst_nb", None)
    table = pd.DataFrame({"a": ["0.060"]})
    tables.glue("answer", 42)
    tables.glue("table", table)
    assert capsys.readouterr().out == f"answer = 42\ntable = {tables.markdown(table)}\n"
