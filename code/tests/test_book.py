"""The pages and the package say the same: formulas, printed code, the picture in the README, the contents."""

import importlib
import inspect
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from formulas import Formula, check, each, equations
from sphinx.pycode import ModuleAnalyzer

from highway.experiments import CATALOGUE
from highway.layers import HighwayBlock, PlainBlock
from highway.networks import HighwayMLP
from highway.probes import gradient_norms
from highway.results import load

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for page in (ROOT / "book").rglob("*.md") if "_build" not in page.parts)
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}


FORMULAS = {
    "eq-stacked": Formula(
        r"""\begin{bmatrix} \mathbf{Z}_H & \mathbf{Z}_T \end{bmatrix}
        = \mathbf{X} \begin{bmatrix} \mathbf{W}_H \\ \mathbf{W}_T \end{bmatrix}^{\!\top}
        + \begin{bmatrix} \mathbf{b}_H & \mathbf{b}_T \end{bmatrix}.""",
        right=lambda: X @ BLOCK.weight.T + BLOCK.bias,
        truth=lambda: torch.cat([BLOCK.act_input, torch.logit(BLOCK.candidate_and_gate(X)[1])], dim=1),
        wrong={
            "gate over proposal": lambda: X @ BLOCK.weight.roll(7, 0).T + BLOCK.bias,
            "no transpose": lambda: torch.cat([X @ w for w in BLOCK.weight.split(7)], dim=1) + BLOCK.bias,
            "no bias": lambda: X @ BLOCK.weight.T,
        },
    ),
    "eq-params": Formula(
        r"2\,(50 \cdot 50 + 50) = 5100, \qquad 71 \cdot 71 + 71 = 5112.",
        right=lambda: torch.tensor([2 * (50 * 50 + 50), 71 * 71 + 71]),
        truth=lambda: torch.tensor([parameters(HighwayBlock(50)), parameters(PlainBlock(71))]),
        wrong={"no biases": lambda: torch.tensor([2 * 50 * 50, 71 * 71])},
    ),
    "eq-gradient-norm": Formula(
        r"""g_\ell = \lVert \partial \mathcal{L} / \partial \theta_\ell \rVert ,
        \qquad \ell = 0, 1, \dots, L + 1,""",
        right=lambda: norms_by_backward(),
        truth=lambda: torch.tensor(list(gradient_norms(*problem()).values()), dtype=torch.float64),
        wrong={
            "squared": lambda: norms_by_backward() ** 2,
            "the weights alone": lambda: norms_by_backward(biases=False),
            "without the output layer": lambda: norms_by_backward()[:-1],
        },
        rtol=1e-10,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _block():
    global BLOCK, X
    torch.manual_seed(0)
    BLOCK, X = HighwayBlock(7, gate_bias=-1).double(), torch.randn(5, 7, dtype=torch.float64)
    identity = HighwayBlock(7, "identity").double()
    identity.load_state_dict(BLOCK.state_dict())
    BLOCK.act_input = identity.candidate_and_gate(X)[0]  # the proposal before its activation


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def problem():
    torch.manual_seed(0)
    model = HighwayMLP(6, 5, 3, 4).double()
    return model, torch.randn(9, 6, dtype=torch.float64), torch.arange(9) % 4, torch.nn.CrossEntropyLoss()


def norms_by_backward(biases=True):
    model, inputs, labels, criterion = problem()
    criterion(model(inputs), labels).backward()
    layers = [model.input, *model.blocks, model.output]
    chosen = [[p.grad for p in layer.parameters() if biases or p.dim() == 2] for layer in layers]
    return torch.stack([sum(g.square().sum() for g in gradients).sqrt() for gradients in chosen])


@each(FORMULAS)
def test_the_formula_of_the_text(label, formula):
    check(label, formula)


def test_every_equation_of_the_book_has_a_test():
    """Each chapter's test module has a dictionary FORMULAS; a label that stands in none has no test."""
    tested = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        if "FORMULAS = {" in file.read_text(encoding="utf-8"):
            formulas = importlib.import_module(file.stem).FORMULAS
            assert not tested & set(formulas), f"{file.name} tests what another module tests: {tested & set(formulas)}"
            tested |= set(formulas)
    assert set(equations()) == tested


def test_the_formula_sheet_is_gathered_from_the_chapters():
    script = runpy.run_path(str(ROOT / "code" / "formula_sheet.py"))
    for place, text in ((script["PAGE"], script["page"]()), (script["LATEX"], script["latex"]())):
        assert text == place.read_text(encoding="utf-8"), "run `make formulas`"
    labels = [label for entries in script["SHEET"].values() for label in entries]
    assert set(labels) <= set(equations())
    assert len(labels) == len(set(labels)) >= 20


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_the_formula_sheet_compiles(tmp_path):
    latex = runpy.run_path(str(ROOT / "code" / "formula_sheet.py"))["LATEX"]
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"-output-directory={tmp_path}", str(latex)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    assert "Overfull" not in run.stdout


def test_every_listing_prints_exactly_what_the_package_runs():
    listings = [
        (page, *found)
        for page, text in TEXTS.items()
        for found in re.findall(r"\{literalinclude\} (\S+)\n:language: python\n:pyobject: (\w+)\n", text)
    ]
    assert len(listings) == sum(text.count("{literalinclude}") for text in TEXTS.values()) > 0
    for page, file, name in listings:
        source = (ROOT / page).parent.joinpath(file).resolve()
        _, first, last = ModuleAnalyzer.for_file(str(source), "").find_tags()[name]  # the lines that Sphinx prints
        printed = source.read_text(encoding="utf-8").splitlines()[first - 1 : last]
        runs = inspect.unwrap(getattr(importlib.import_module(f"highway.{source.stem}"), name))
        assert Path(inspect.getsourcefile(runs)) == source
        assert "\n".join(printed).strip() == inspect.getsource(runs).strip(), f"{page}: {name}"


def test_the_picture_of_the_readme_is_drawn_from_the_stored_result(monkeypatch, book_style):
    monkeypatch.delenv("HIGHWAY_RESULTS", raising=False)
    script = runpy.run_path(str(ROOT / "code" / "picture.py"))
    drawn = script["picture"]()
    assert drawn == script["PLACE"].read_text(encoding="utf-8"), "run `make picture`"
    assert "](book/_static/depth20.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_gives_the_minutes_of_the_records(monkeypatch):
    monkeypatch.delenv("HIGHWAY_RESULTS", raising=False)
    given = re.findall(
        r"^\| `([\w-]+)` \|.*\| (\d+) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert given == [(name, f"{load(name).record['wall_seconds'] / 60:.0f}") for name in CATALOGUE]


def test_the_contents_list_every_page_and_no_other():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [contents["root"], *(chapter["file"] for part in contents["parts"] for chapter in part["chapters"])]
    assert sorted(f"{page}.md" for page in listed) == sorted(TEXTS)


@pytest.mark.parametrize("page", TEXTS)
def test_no_chapter_number_is_typed(page):
    assert not re.search(r"\b[Cc]hapters? \d", TEXTS[page])


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if "## Exercises" in text])
def test_every_exercise_has_a_folded_solution(page):
    exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: (\S+)", TEXTS[page])
    solutions = re.findall(r"\{solution(?:-start)?\} (\S+)\n:class: dropdown", TEXTS[page])
    assert len(exercises) >= 4
    assert exercises == solutions
