"""The pages and the package say the same: formulas, printed code, the picture in the README, the contents."""

import importlib
import inspect
import re
import runpy
from pathlib import Path

import matplotlib
import pytest
import torch
import yaml
from sphinx.pycode import ModuleAnalyzer

from highway.layers import HighwayBlock, PlainBlock

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for page in (ROOT / "book").rglob("*.md") if "_build" not in page.parts)
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}


def sigmoid(z):
    return 1 / (1 + torch.exp(-z))


def maps(block, x):
    """H and T by the affine maps written out, one example a column, as in the text."""
    d = block.in_features
    column = x.T
    h = torch.relu(block.weight[:d] @ column + block.bias[:d, None])
    t = sigmoid(block.weight[d:] @ column + block.bias[d:, None])
    return h, t, column


FORMULAS = {
    "eq-gate": (
        r"T(\mathbf{x}) = \sigma(\mathbf{W}_T \mathbf{x} + \mathbf{b}_T), \qquad \sigma(z) = \frac{1}{1 + e^{-z}},",
        lambda block, x: (maps(block, x)[1].T, block.candidate_and_gate(x)[1]),
    ),
    "eq-highway": (
        r"\mathbf{y} = T(\mathbf{x}) \odot H(\mathbf{x}) + (1 - T(\mathbf{x})) \odot \mathbf{x}.",
        lambda block, x: ((lambda h, t, c: t * h + (1 - t) * c)(*maps(block, x)).T, block(x)),
    ),
    "eq-lerp": (
        r"T \odot H + (1 - T) \odot \mathbf{x} = \mathbf{x} + T \odot (H - \mathbf{x}),",
        lambda block, x: ((lambda h, t, c: c + t * (h - c))(*maps(block, x)).T, block(x)),
    ),
}


@pytest.mark.parametrize("label", FORMULAS)
def test_the_formula_of_the_text_is_what_the_block_computes(label):
    """If the text's formula is changed, this test must be changed with it, and then compares it with the block."""
    latex, both_sides = FORMULAS[label]
    written = re.search(rf":label: {label}\n(.*?)\n```", TEXTS["book/highway/building.md"], re.DOTALL)
    assert written, f"building.md has no equation {label}"
    assert " ".join(written[1].split()) == latex
    torch.manual_seed(0)
    block, x = HighwayBlock(7, gate_bias=-1).double(), torch.randn(5, 7, dtype=torch.float64)
    by_formula, by_package = both_sides(block, x)
    torch.testing.assert_close(by_formula, by_package, rtol=0, atol=1e-15)


def test_the_plain_formula_of_the_text_is_what_the_block_computes():
    written = re.search(r":label: eq-plain\n(.*?)\n```", TEXTS["book/highway/building.md"], re.DOTALL)[1]
    assert r"H(\mathbf{x}) = f(\mathbf{W}_H \mathbf{x} + \mathbf{b}_H)" in written
    torch.manual_seed(0)
    block, x = PlainBlock(7, "tanh").double(), torch.randn(5, 7, dtype=torch.float64)
    torch.testing.assert_close(torch.tanh(block.weight @ x.T + block.bias[:, None]).T, block(x), rtol=0, atol=1e-15)


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


def test_the_picture_of_the_readme_is_drawn_from_the_stored_result(monkeypatch):
    monkeypatch.delenv("HIGHWAY_RESULTS", raising=False)
    with matplotlib.rc_context():
        script = runpy.run_path(str(ROOT / "code" / "picture.py"))
        drawn = script["picture"]()
    assert drawn == script["PLACE"].read_text(encoding="utf-8"), "run `make picture`"
    assert "](book/_static/depth20.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


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
