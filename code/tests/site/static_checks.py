"""What can be wrong in the files of a built site: each check returns its list of problems."""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import jupytext
import nbformat
from bs4 import BeautifulSoup, NavigableString, Tag

LOADED = ("script[src]", "img[src]", "iframe[src]", "source[src]", "video[src]", "audio[src]", "embed[src]")
FETCHING_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "manifest",
    "apple-touch-icon",
}
NOT_TEXT = "script, style, template, code, math, .katex, .sig"
NOT_PROSE = NOT_TEXT + ", .highlight"
NOT_OUTPUT = NOT_TEXT + ", .highlight:not(.cell_output .highlight)"

RAW_MARKUP = {
    "role or directive": r"\{[A-Za-z][\w:+-]+\}",
    "display math": r"\$\$",
    "inline math": r"\$[^$\n]*[\\_^{][^$\n]*\$",
    "TeX delimiter": r"\\[()\[\]]",
    "TeX command": r"\\[A-Za-z]+",
    "code fence": r"```|~~~",
    "colon fence": r":::",
    "wiki link": r"\[\[",
    "unresolved reference": r"\?\?",
    "target": r"(?m)^\s*\([\w-]+\)=",
    "option line": r"(?m)^\s*:(name|label|alt|class|width|format|tags|figclass|header-rows):",
    "number that is not one": r"\bnan\b",
}
COMPLAINTS = {
    "traceback": r"Traceback",
    "warning": r"(?i:\bwarning:)|\b[A-Z]\w*Warning\b:?",
    "error in an output": r"(?m)^\s*([A-Z]\w*(Error|Exception)|KeyboardInterrupt)\b:",
}


@cache
def parse(path):
    """The parsed page at `path`."""
    return BeautifulSoup(Path(path).read_text(encoding="utf-8"), "html.parser")


def pages(site):
    """Paths of the pages of `site`, relative to it, without the theme's own fragments."""
    return sorted(
        p.relative_to(site).as_posix()
        for p in Path(site).rglob("*.html")
        if p.relative_to(site).parts[0] not in {"_static", "_sources", "_downloads"}
    )


def redirect(soup):
    """The address that a page forwards to, or None."""
    meta = soup.find("meta", attrs={"http-equiv": re.compile("^refresh$", re.I)})
    return meta and meta["content"].partition("=")[2].strip("'\" ")


def shown_pages(site):
    """The pages of `site` that show something: all but those that forward to another."""
    return [page for page in pages(site) if not redirect(parse(Path(site) / page))]


def text(element, leave_out):
    """The text of an element without those below it that the selector `leave_out` names."""
    skipped = {id(e) for e in element.select(leave_out)}

    def strings(parent):
        for child in parent.children:
            if type(child) is NavigableString:
                yield child
            elif isinstance(child, Tag) and id(child) not in skipped:
                yield from strings(child)

    return "".join(strings(element))


def found(patterns, where):
    """One line for each pattern of the dict `patterns` that occurs in the text `where`."""
    return [
        f"{name}: …{where[max(m.start() - 40, 0) : m.end() + 40]!r}…"
        for name, pattern in patterns.items()
        if (m := re.search(pattern, where))
    ]


def is_outside(address):
    return urlsplit(address).netloc != "" or urlsplit(address).scheme not in ("", "data", "blob", "mailto")


def outside_resources(soup):
    """Whatever a browser would fetch, now or when scrolled to, from another host."""
    addresses = [e["src"] for e in soup.select(", ".join(LOADED))]
    addresses += [e["href"] for e in soup.select("link[href]") if FETCHING_LINKS & set(e.get("rel", []))]
    addresses += [a.split()[0] for e in soup.select("[srcset]") for a in e["srcset"].split(",") if a.strip()]
    addresses += [o["data"] for o in soup.select("object[data]")]
    return [f"fetched from elsewhere: {address}" for address in addresses if is_outside(address)]


def outside_styles(css):
    """Addresses of another host in the text of a style sheet."""
    return [m[1] for m in re.finditer(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^)'"\s]+)""", css)]


@cache
def anchors(path):
    return {e.get("id") or e.get("name") for e in parse(path).select("[id], a[name]")}


def dead_links(site, page):
    """Links of a page that lead nowhere: a file that is not there, an anchor that is not on its page."""
    site, here, problems = Path(site).resolve(), (Path(site) / page).resolve(), []
    soup = parse(here)
    addresses = [e.get("href") or e.get("src") for e in soup.select("a[href], link[href], area[href], [src]")]
    for address in sorted({a for a in [*addresses, redirect(soup)] if a}):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if parts.scheme in ("file", "javascript") or parts.hostname in ("localhost", "127.0.0.1"):
                problems.append(f"works on one machine only: {address}")
            continue
        if parts.path.startswith("/"):
            problems.append(f"breaks below a sub-path: {address}")
            continue
        target = (here.parent / unquote(parts.path)).resolve() if parts.path else here
        if not target.is_relative_to(site) or not target.is_file():
            problems.append(f"no such file: {address}")
        elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in anchors(target):
            problems.append(f"no such anchor: {address}")
    return problems


def image_problems(soup):
    """Images without alternative text (a file name is none), figures and cells' images without caption."""
    problems = []
    for image in soup.select("img"):
        alt, source = image.get("alt", "").strip(), image.get("src", "")
        if image.get("role") in ("presentation", "none") or image.find_parent(class_="navbar-brand"):
            continue  # decoration; beside the logo stands the book's name
        if not alt or Path(alt).name == Path(source).name or alt.startswith("data:"):
            problems.append(f"no alternative text: {source[:80]}")
        if image.find_parent(class_="cell_output") and not image.find_parent("figure"):
            problems.append(f"a cell's image outside a figure: {source[:80]}")
    for figure in soup.select("figure"):
        caption = figure.find("figcaption")
        if not (caption and text(caption, ".caption-number, .headerlink").strip()):
            problems.append(f"figure without caption: {figure.get('id') or str(figure)[:80]}")
    return problems


def text_problems(soup):
    """Markup that was not rendered, and complaints of the build or of a cell."""
    problems = found(RAW_MARKUP, text(soup, NOT_PROSE)) + found(COMPLAINTS, text(soup, NOT_OUTPUT))
    marks = ".katex-error, .system-message, .problematic, .output.stderr, .output.traceback, .math"
    for element in soup.select(marks):
        if "math" in element.get("class", []) and element.select_one(".katex, math"):
            continue
        problems.append(f"marked {' '.join(element['class'])}: {element.get_text()[:80]!r}")
    return problems


def code_cells(source):
    """The code cells of a MyST page, in order; none for a page that is plain Markdown."""
    return [c for c in jupytext.read(source, fmt="md:myst").cells if c.cell_type == "code"]


def is_notebook(source):
    """Whether Jupyter Book runs the cells of this page."""
    header = re.match(r"---\n(.*?\n)---\n", Path(source).read_text(encoding="utf-8"), re.S)
    return bool(header and re.search(r"format_name:\s*myst\b", header[1]))


def executed_cells(cells, cache):
    """The newest execution of these code cells in the folder `cache` where the build keeps executions, or None."""
    sources = [c.source.strip() for c in cells]
    executions = sorted(Path(cache).rglob("base.ipynb"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in executions:
        ran = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        if [c.source.strip() for c in ran] == sources:
            return ran
    return None


def is_visible(output):
    """Whether an output shows something; a glued value, for one, does not."""
    return output.output_type == "stream" or any(kind.startswith(("text/", "image/")) for kind in output.data)


def cell_problems(source, soup, cache):
    """Cells of the page `source` that did not run, complained, or whose outputs are not on the built page `soup`."""
    if not is_notebook(source):
        cells = re.findall(r"(?m)^\s*(?:```+|:::+)\{code-cell\}", Path(source).read_text(encoding="utf-8"))
        return [f"{len(cells)} code cells do not run: the header has no format_name: myst"] if cells else []
    cells = executed_cells(code_cells(source), cache)
    if cells is None:
        return ["the build did not execute this page"]
    problems = []
    for number, cell in enumerate(cells, 1):
        if cell.source.strip() and cell.execution_count is None:
            problems.append(f"cell {number} did not run: {cell.source[:60]!r}")
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                problems.append(f"cell {number} complained: {json.dumps(output)[:120]}")
    if problems:
        return problems
    tags = [set(c.metadata.get("tags", [])) for c in code_cells(source)]
    shown = [(number, cell) for number, cell in enumerate(cells, 1) if "remove-cell" not in tags[number - 1]]
    boxes = soup.select("div.cell")
    if len(boxes) != len(shown):
        return [f"{len(shown)} cells to show, {len(boxes)} on the page"]
    return [
        f"the output of cell {number} is not on the page: {cell.source[:60]!r}"
        for (number, cell), box in zip(shown, boxes, strict=True)
        if any(map(is_visible, cell.outputs))
        and "remove-output" not in tags[number - 1]
        and not box.select_one(".cell_output")
    ]


def download_problems(site, page, source):
    """What is wrong with the notebook that a notebook page offers for download."""
    here = (Path(site) / page).resolve()
    links = {
        a["href"]
        for a in parse(here).select("a[href]")
        if urlsplit(a["href"]).path.endswith(".ipynb") and not is_outside(a["href"])
    }
    if not links:
        return ["no notebook to download"]
    problems = []
    for link in links:
        path = here.parent / unquote(urlsplit(link).path)
        try:
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
        except (OSError, ValueError, nbformat.ValidationError) as error:
            problems.append(f"{link} is no notebook: {str(error)[:200]}")
            continue
        cells = [c for c in notebook.cells if c.cell_type == "code"]
        if len(cells) < len(code_cells(source)):
            problems.append(f"{link}: {len(cells)} of the page's {len(code_cells(source))} code cells")
        if any(c.outputs for c in cells):
            problems.append(f"{link} holds outputs")
    return problems
