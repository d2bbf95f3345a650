"""Every table of the book, made from plain data, and `glue`, which puts a value into the prose."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd


def glue(name: str, value: object) -> None:
    """Put `value` under `name` where the book's prose can use it; outside a build of the book, print it.

    A string is glued as it is; a DataFrame as a Markdown table.
    """
    if isinstance(value, pd.DataFrame):
        from IPython.display import Markdown

        value = Markdown(markdown(value))
    try:
        from myst_nb import glue as put
    except ImportError:
        print(f"{name} = {getattr(value, 'data', value)}")
    else:
        put(name, value, display=False)


def markdown(table: pd.DataFrame) -> str:
    """Return `table` as Markdown: every cell as it is written, columns of numbers to the right, no index."""
    cells = table.astype(str)
    right = cells.map(lambda cell: re.match(r"-?[\d.]|diverged$|none$", cell) is not None).all()
    return cells.to_markdown(index=False, disable_numparse=True, colalign=["right" if r else "left" for r in right])


def scientific(value: float, digits: int = 1) -> str:
    """Return a number as prose writes it: 2.1 × 10⁻⁸."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}\u00a0×\u00a010{raised}"


def median_and_range(values: Iterable[float], digits: int, percent: bool = False) -> str:
    """Return `median (smallest to largest)`, in per cent if asked."""
    numbers = np.asarray(list(values), dtype=float) * (100 if percent else 1)
    if numbers.size == 0:
        return "none"
    low, middle, high = (f"{number:.{digits}f}" for number in (numbers.min(), np.median(numbers), numbers.max()))
    return f"{middle} ({low} to {high})"


def final_values(history: pd.DataFrame, split: str, metric: str) -> pd.Series:
    """Return the last epoch's `metric` on `split`, one value a run, in the order of the history."""
    rows = history[history["split"] == split]
    return rows.groupby([*_identity(rows), "rate", "seed"], sort=False, dropna=False)[metric].last()


def _identity(history: pd.DataFrame) -> list[str]:
    """The columns that tell the networks of an experiment apart."""
    return [name for name in ("network", "init", "depth", "gate_bias") if name in history]


def summary(history: pd.DataFrame) -> pd.DataFrame:
    """Return the final table of an experiment, a row a network: medians over seeds, with the full range.

    `history` is the tidy history of a record; networks that share name and initialisation are told apart by their depth
    and gate bias. `finished` counts the runs that did not diverge, and the columns behind it are about these.
    """
    rows = []
    identity = _identity(history)
    within = history.groupby(["network", "init"], sort=False)
    several = [name for name in identity[2:] if (within[name].nunique() > 1).any()]
    for key, runs in history.groupby(identity, sort=False, dropna=False):
        network, init, *rest = key
        extra = {
            name.replace("_", " "): value for name, value in zip(identity[2:], rest, strict=True) if name in several
        }
        seeds = runs.loc[runs["split"] == "test", "seed"].unique()
        whole = runs[runs["seed"].isin(seeds)]
        row = {
            "network": network,
            "initialisation": init,
            **{name: "none" if pd.isna(value) else f"{value:.3g}" for name, value in extra.items()},
            "rate": f"{runs['rate'].iloc[0]:g}",
            "finished": f"{len(seeds)} of {runs['seed'].nunique()}",
            "training loss": median_and_range(final_values(whole, "train", "loss"), 4),
            "validation accuracy, %": median_and_range(final_values(whole, "validation", "accuracy"), 2, percent=True),
            "test accuracy, %": median_and_range(final_values(whole, "test", "accuracy"), 2, percent=True),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def rate_table(tuning: pd.DataFrame) -> pd.DataFrame:
    """Return the validation accuracy in per cent, a row a network and a column a rate; the chosen one is starred.

    `tuning` holds networks of one depth, told apart by name and initialisation.
    """
    cells = tuning.assign(
        cell=[
            "diverged" if row.accuracy == 0 else f"{100 * row.accuracy:.2f}" + (" *" if row.chosen else "")
            for row in tuning.itertuples()
        ],
        network=tuning["network"] + ", " + tuning["init"],
    )
    order = list(dict.fromkeys(cells["network"]))
    table = cells.pivot(index="network", columns="rate", values="cell").loc[order]
    return table.rename(columns=lambda rate: f"{rate:g}").reset_index()


def gate_table(gates: np.ndarray, names: Sequence[str]) -> pd.DataFrame:
    """Return the mean transform gate, a row a block and a column an example: `gates` is (n, L)."""
    table = pd.DataFrame(gates.T, columns=list(names)).map("{:.3f}".format)
    table.insert(0, "block", range(1, gates.shape[1] + 1))
    return table


def bias_table(before: np.ndarray, after: np.ndarray) -> pd.DataFrame:
    """Return the gate biases of every block before and after training; both arrays are (L, d)."""
    return pd.DataFrame({
        "block": range(1, len(after) + 1),
        "before": [f"{row.mean():.2f}" for row in before],
        "after: mean": [f"{row.mean():.2f}" for row in after],
        "smallest": [f"{row.min():.2f}" for row in after],
        "largest": [f"{row.max():.2f}" for row in after],
        "units that fell": [f"{int((a < b).sum())} of {a.size}" for b, a in zip(before, after, strict=True)],
    })  # fmt: skip


def ledger(records: Iterable[Mapping]) -> pd.DataFrame:
    """Return the ledger of results, a row a record: what, when, where, how long, and how to repeat it."""
    return pd.DataFrame([
        {
            "experiment": record["name"],
            "what": record["title"],
            "when": record["date"][:10],
            "where": f"{record['processor']}, torch {record['versions']['torch']}",
            "minutes": f"{record['wall_seconds'] / 60:.0f}",
            "repeat": f"`highway run {record['name']}`",
        }
        for record in records
    ])  # fmt: skip
