"""Executable pages as notebooks that run anywhere: `notebooks/<page>.ipynb` beside the site, and a button for each.

The text of such a notebook is written from the page as Sphinx resolved it, so that every number, reference and
citation reads as on the page; its code cells are those of the page's source, without outputs. A first cell installs
the package where it is missing, as on Colab.
"""

import re
from pathlib import Path

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook

INSTALL = """\
import importlib.util
import os
import sys

if importlib.util.find_spec("highway") is None:  # on Colab, for example
    {commands}"""

CLONE = """\
!git clone --quiet --depth 1 {repository} highway-networks
    %pip install --quiet -e highway-networks/code
    sys.path.insert(0, os.path.abspath("highway-networks/code"))"""

ASK = 'sys.exit("Install the package first: pip install -e code, in the folder of the book.")'

SKIPPED = (
    nodes.comment,
    nodes.target,
    nodes.substitution_definition,
    nodes.raw,
    nodes.meta,
    nodes.system_message,
)


class Notebook:
    """Collects the cells of one page while walking its document tree."""

    def __init__(
        self,
        code_cells: dict[int, nbformat.NotebookNode],
        numbers: dict[str, dict[str, tuple]],
        lines: dict[int, int] | None = None,
    ):
        self.code_cells = code_cells
        self.numbers = numbers
        self.lines = lines or {}  # of the source, by the number of a code cell
        self.cells = []
        self.text = []

    def flush(self):
        """Close the Markdown cell under way."""
        text = re.sub(r"\n{3,}", "\n\n", "\n\n".join(part for part in self.text if part.strip()))
        if text:
            self.cells.append(nbformat.v4.new_markdown_cell(text))
        self.text = []

    def code_until(self, last: int):
        """Add the source's code cells up to number `last`, those hidden on the page included."""
        for index in sorted(index for index in self.code_cells if index <= last):
            self.flush()
            self.cells.append(self.code_cells.pop(index))

    def hidden_before(self, line: int):
        """Add the cells hidden on the page that stand before this line of the source, if they come next."""
        for index in sorted(self.code_cells):
            hidden = "remove-cell" in self.code_cells[index].metadata.get("tags", ())
            if not hidden or self.lines.get(index, line) >= line:
                return
            self.code_until(index)

    def number(self, node, kind: str) -> str:
        """Return the number that Sphinx gave to a node of this kind, such as 9.2, or nothing."""
        numbers = (self.numbers.get(kind, {}).get(name) for name in node.get("ids", ()))
        return next((".".join(map(str, number)) for number in numbers if number), "")

    def caption(self, node, kind: str, caption):
        """Add a caption under its name and number, such as Figure 9.2."""
        if caption is not None:
            name = f"{'Listing' if kind == 'code-block' else kind.capitalize()} {self.number(node, kind)}".strip()
            self.text.append(f"**{name}.** {self.inline(caption)}")

    # Inline text

    def inline(self, node) -> str:
        """Return the Markdown of a node's inline content."""
        return "".join(self.span(child) for child in node.children)

    def span(self, node) -> str:
        if isinstance(node, nodes.Text):
            return re.sub(r"([\\`*_$<])", r"\\\1", node.astext())
        if isinstance(node, nodes.math):
            return f"${node.astext()}$"
        if isinstance(node, nodes.literal):
            return f"`{node.astext()}`"
        if isinstance(node, SKIPPED):
            return ""
        if isinstance(node, nodes.footnote_reference):
            return f"[{node.astext()}]"
        text = self.inline(node)
        if isinstance(node, nodes.strong):
            return f"**{text}**"
        if isinstance(node, (nodes.emphasis, nodes.title_reference)):
            return f"*{text}*"
        if isinstance(node, nodes.reference) and "://" in node.get("refuri", ""):
            return f"[{text}]({node['refuri']})"
        if isinstance(node, nodes.image):
            return node.get("alt", "")
        return text

    # Blocks

    def walk(self, parent, level=1):
        """Add everything below `parent`; `level` is the depth of its headings."""
        for node in parent.children:
            self.block(node, level)

    def block(self, node, level):
        if isinstance(node, SKIPPED):
            return
        if node.line is not None:
            self.hidden_before(node.line)
        if node.get("nb_element") == "cell_code":
            self.code_until(node["cell_index"])
            for figure in node.findall(nodes.figure):
                self.block(figure, level)
        elif isinstance(node, nodes.section):
            self.walk(node, level + 1)
        elif isinstance(node, nodes.title) and not node.astext().strip():
            return
        elif isinstance(node, nodes.title):
            self.text.append(f"{'#' * min(max(level - 1, 1), 6)} {self.inline(node)}")
        elif isinstance(node, nodes.math_block):
            number = self.number(node, "displaymath")
            tag = rf" \tag{{{number}}}" if number else ""
            self.text.append(f"$$\n{node.astext().strip()}{tag}\n$$")
        elif isinstance(node, nodes.literal_block):
            language = node.get("language", "")
            language = (
                "python" if "python" in language else "" if language in ("default", "none") else language
            )
            self.text.append(f"```{language}\n{node.astext().rstrip()}\n```")
        elif "literal-block-wrapper" in node.get("classes", ()):
            self.caption(node, "code-block", next(node.findall(nodes.caption), None))
            self.block(node[-1], level)
        elif isinstance(node, (nodes.bullet_list, nodes.enumerated_list)):
            self.list(node, level)
        elif isinstance(node, nodes.definition_list_item):
            term = " ".join(self.inline(part) for part in node if isinstance(part, nodes.term))
            self.text.append(f"**{term}**")
            self.walk(node[-1], level)
        elif isinstance(node, nodes.table):
            self.table(node)
        elif isinstance(node, nodes.figure):
            self.caption(node, "figure", next(node.findall(nodes.caption), None))
        elif isinstance(node, (nodes.footnote, nodes.citation)):
            self.text.append(f"[{node[0].astext()}] {self.part(nodes.container('', *node[1:]), level)}")
        elif isinstance(node, nodes.Admonition):
            self.admonition(node, level)
        elif isinstance(node, (nodes.block_quote, nodes.sidebar)):
            self.quote(node, level)
        elif isinstance(node, nodes.TextElement):
            self.text.append(self.inline(node))
        else:
            self.walk(node, level)

    def part(self, node, level) -> str | None:
        """Return the Markdown of a node's content, or None where it holds code cells."""
        if any(isinstance(cell, nodes.Element) and cell.get("nb_element") for cell in node.findall()):
            return None
        inner = Notebook({}, self.numbers)
        inner.walk(node, level)
        return "\n\n".join(part for part in inner.text if part.strip())

    def list(self, node, level):
        lines = []
        for number, item in enumerate(node.children, node.get("start", 1)):
            mark = "- " if isinstance(node, nodes.bullet_list) else f"{number}. "
            body = (self.part(item, level) or "").replace("\n", "\n" + " " * len(mark))
            lines.append(mark + body)
        self.text.append("\n".join(re.sub(r"\n +\n", "\n\n", line) for line in lines))

    def table(self, node):
        self.caption(
            node, "table", next((child for child in node.children if isinstance(child, nodes.title)), None)
        )
        rows = [
            [
                " ".join(self.inline(part) for part in entry.children).replace("|", r"\|")
                for entry in row.children
            ]
            for row in node.findall(nodes.row)
        ]
        if not any(True for _ in node.findall(nodes.thead)):
            rows.insert(0, [""] * len(rows[0]))
        rows.insert(1, ["---"] * len(rows[0]))
        self.text.append("\n".join(f"| {' | '.join(row)} |" for row in rows))

    def quote(self, node, level):
        body = self.part(node, level)
        if body is None:
            self.walk(node, level)
        else:
            self.text.append("\n".join(f"> {line}".rstrip() for line in body.split("\n")))

    def admonition(self, node, level):
        """A solution unfolds; every other box is a quotation under its title."""
        children = list(node.children)
        title = self.inline(children.pop(0)) if children and isinstance(children[0], nodes.title) else ""
        kind = node.get("realtype") or node.tagname.removesuffix("_node").removesuffix("_enumerable")
        if kind not in ("solution", "admonition") and not title.startswith(kind.capitalize()):
            number = self.number(node, node.get("countertype") or kind)
            title = " ".join(part for part in (kind.capitalize(), number, title.strip()) if part)
        content = nodes.container("", *(child.deepcopy() for child in children))
        body = self.part(content, level)
        if body is None:
            self.text.append(f"**{title}**")
            self.walk(content, level)
        elif kind == "solution" or "dropdown" in node.get("classes", ()):
            self.text.append(f"<details><summary>{title}</summary>\n\n{body}\n\n</details>")
        else:
            lines = f"**{title}**\n\n{body}".split("\n")
            self.text.append("\n".join(f"> {line}".rstrip() for line in lines))


def make_notebook(source: str, doctree, numbers: dict[str, dict[str, tuple]], repository: str):
    """Return the page written in `source` and resolved to `doctree` as a notebook without outputs."""
    page = read_myst_markdown_notebook(source, add_source_map=True)
    code, lines = {}, dict(enumerate(page.metadata["source_map"]))
    for index, cell in enumerate(page.cells):
        if cell.cell_type == "code":
            tags = cell.metadata.get("tags")
            code[index] = nbformat.v4.new_code_cell(cell.source, metadata={"tags": tags} if tags else {})
    notebook = Notebook(code, numbers, lines)
    notebook.walk(doctree)
    notebook.code_until(len(page.cells))
    notebook.flush()
    commands = CLONE.format(repository=repository) if repository else ASK
    cells = [nbformat.v4.new_code_cell(INSTALL.format(commands=commands)), *notebook.cells]
    for number, cell in enumerate(cells, 1):
        cell["id"] = f"cell-{number:03}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    result = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.validate(result)
    return result


def add_notebook(app, pagename, templatename, context, doctree):
    """Write an executable page's notebook and put its button, and Colab's where there is a repository, on the page."""
    if doctree is None or "kernelspec" not in app.env.metadata[pagename]:
        return
    repository = app.config.html_theme_options.get("repository_url", "")
    numbers = app.env.toc_fignumbers.get(pagename, {})
    source = Path(app.env.doc2path(pagename)).read_text("utf-8")
    file = Path(app.outdir, "notebooks", pagename).with_suffix(".ipynb")
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(make_notebook(source, doctree, numbers, repository), file)
    buttons = next(
        group["buttons"] for group in context["header_buttons"] if group["label"] == "download-buttons"
    )
    buttons.insert(
        0,
        {
            "type": "link",
            "url": f"{context['pathto']('notebooks', 1)}/{pagename}.ipynb",
            "text": ".ipynb",
            "tooltip": "Download notebook",
            "icon": "fas fa-code",
            "label": "download-notebook-button",
        },
    )
    if "github.com/" in repository:
        path = repository.split("github.com/")[1].strip("/")
        context["header_buttons"].insert(
            0,
            {
                "type": "link",
                "url": f"https://colab.research.google.com/github/{path}/blob/gh-pages/notebooks/{pagename}.ipynb",
                "tooltip": "Open in Colab",
                "icon": "fas fa-rocket",
                "label": "colab-button",
            },
        )
