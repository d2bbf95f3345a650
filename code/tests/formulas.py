"""How the tests hold a formula of the text against the code.

A chapter's test module has a dictionary `FORMULAS` from labels of equations to `Formula`s. Each gives the LaTeX of the
page, the same formula in Python, and the truth it must give: what autograd, the package or a simulation says. It also
gives wrong versions of the formula (a sign, a transpose, a missing term): a check that one of them passes is too weak.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

BOOK = Path(__file__).resolve().parents[2] / "book"
PAGES = sorted(page for page in BOOK.rglob("*.md") if "_build" not in page.parts)


def equations() -> dict[str, str]:
    """Every labelled equation of the book, its white space collapsed."""
    found = {}
    for page in PAGES:
        for block in re.findall(r"\{math\}\n(.*?)\n```", page.read_text(encoding="utf-8"), re.DOTALL):
            label = re.match(r":label: (\S+)\n", block)
            if label:
                assert label[1] not in found, f"{page.name}: {label[1]} stands twice"
                found[label[1]] = " ".join(block[label.end() :].split())
    return found


@dataclass(frozen=True)
class Formula:
    """One equation of the text.

    `right`, `truth` and every value of `wrong` are functions without arguments that return a tensor. `right` must come
    within `atol` + `rtol` * |truth| of the truth in every entry, and no wrong version may. A definition, which has
    nothing to be compared with, gives the LaTeX alone.
    """

    latex: str
    right: Callable[[], Tensor] | None = None
    truth: Callable[[], Tensor] | None = None
    wrong: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    rtol: float = 1e-12
    atol: float = 1e-14

    def holds(self, side: Callable[[], Tensor]) -> bool:
        value, truth = torch.as_tensor(side()).double(), torch.as_tensor(self.truth()).double()
        return value.shape == truth.shape and torch.allclose(value, truth, rtol=self.rtol, atol=self.atol)


def check(label: str, formula: Formula) -> None:
    """Assert that the page says `formula.latex`, that this is true, and that its wrong versions are not."""
    written = equations()
    assert label in written, f"no page has an equation {label}"
    assert written[label] == " ".join(formula.latex.split()), (
        f"the text of {label} has changed: change its test with it"
    )
    if formula.right is None:
        assert formula.truth is None
        assert not formula.wrong
        return
    assert formula.wrong, f"{label}: give at least one wrong version that the check must refuse"
    assert formula.holds(formula.right), f"{label} does not hold"
    for name, version in formula.wrong.items():
        assert not formula.holds(version), f"{label}: the check does not notice this mistake: {name}"


def each(formulas: dict[str, Formula]) -> pytest.MarkDecorator:
    """Parametrise a test over the formulas of a chapter."""
    return pytest.mark.parametrize(("label", "formula"), formulas.items(), ids=formulas)
