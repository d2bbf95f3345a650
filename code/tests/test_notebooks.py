"""The notebooks that the site offers: written from small pages, without a build of the book."""

import sys
from pathlib import Path

import pytest
from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]

PAGE = """\
# Title

First.

```{code-cell} ipython3
shown = 1
```

Second.

```{code-cell} ipython3
:tags: [remove-cell]

hidden = 2
```

## Third

```{code-cell} ipython3
last = 3
```
"""


@pytest.fixture(scope="module")
def make_notebook():
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    try:
        from highway_notebooks import make_notebook
    finally:
        sys.path.pop(0)
    return make_notebook


def line_of(text: str) -> int:
    return PAGE.split("\n").index(text)


def paragraph(text: str) -> nodes.paragraph:
    node = nodes.paragraph(text, text)
    node.line = line_of(text)
    return node


def cell(index: int) -> nodes.container:
    return nodes.container(nb_element="cell_code", cell_index=index)


def resolved() -> nodes.document:
    """The page as Sphinx hands it over: hidden cells are gone."""
    title, third = nodes.title("Title", "Title"), nodes.title("Third", "Third")
    third.line = line_of("## Third")
    document = nodes.section("", title, paragraph("First."), cell(1), paragraph("Second."))
    document += nodes.section("", third, cell(5))
    return nodes.container("", document)


def test_a_hidden_cell_stands_where_the_page_has_it(make_notebook):
    cells = make_notebook(HEADER + PAGE, shifted(resolved()), {}, "").cells
    assert [one.source for one in cells[1:]] == [
        "# Title\n\nFirst.", "shown = 1", "Second.", "hidden = 2", "## Third", "last = 3",
    ]  # fmt: skip


HEADER = """\
---
jupytext:
  text_representation:
    format_name: myst
kernelspec:
  name: python3
---

"""


def shifted(document):
    for node in document.findall(nodes.Element):
        if node.line is not None:
            node.line += HEADER.count("\n")
    return document


def test_the_first_cell_names_the_remedy_or_installs(make_notebook):
    page = HEADER + PAGE
    without = make_notebook(page, resolved(), {}, "").cells[0].source
    assert "pip install -e code" in without
    assert "git clone" not in without
    assert "https://example.org/a/b" in make_notebook(page, resolved(), {}, "https://example.org/a/b").cells[0].source


def test_a_listing_has_its_number_and_no_empty_line_at_its_end(make_notebook):
    code = nodes.literal_block("x = 1\n\n\n", "x = 1\n\n\n", language="python")
    wrapper = nodes.container("", nodes.caption("", "A block"), code, classes=["literal-block-wrapper"], ids=["id1"])
    document = nodes.container("", wrapper)
    text = make_notebook(HEADER + "# T\n", document, {"code-block": {"id1": (4, 2)}}, "").cells[1].source
    assert text == "**Listing 4.2.** A block\n\n```python\nx = 1\n```"
