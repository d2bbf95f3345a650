"""Every check catches what it is there to catch, on a small broken page, and lets a sound page pass."""

import browser_checks
import nbformat
import pytest
import static_checks as checks
from bs4 import BeautifulSoup

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
NOTEBOOK = """---
jupytext:
  text_representation:
    format_name: myst
kernelspec: {name: python3, display_name: Python 3}
---
# Page

```{code-cell} python3
1 + 1
```

```{code-cell} python3
:tags: [remove-cell]
x = 2
```
"""
SHOWN = '<div class="cell"><div class="cell_input">1 + 1</div><div class="cell_output">2</div></div>'
SOUND = f"""
    <p>A gate lets part of a signal pass: a <a href="#there">link</a>, a role <code>{{numref}}</code>, a
    <span class="math"><span class="katex"><math><annotation>\\alpha_{{1}}</annotation></math></span></span>
    </p>
    <h2 id="there">There</h2>
    <div class="highlight"><pre tabindex="0">"$$ {{glue}} UserWarning:"</pre></div>
    <figure><img src="{PIXEL}" alt="A dot">
    <figcaption><span class="caption-number">Fig. 1</span> A dot.</figcaption></figure>"""


def soup(html):
    return BeautifulSoup(html, "html.parser")


# Files


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<img src="//example.org/x.png" loading="lazy">',
        '<link rel="preconnect" href="https://fonts.example.org">',
        '<link rel="stylesheet" href="http://example.org/x.css">',
        '<img src="x.png" srcset="x.png 1x, https://example.org/y.png 2x">',
        '<iframe src="https://example.org/"></iframe>',
        '<object data="https://example.org/x.svg"></object>',
    ],
)
def test_catches_outside_resource(html):
    assert len(checks.outside_resources(soup(html))) == 1


@pytest.mark.parametrize(
    "css",
    [
        "@font-face { src: url(https://example.org/f.woff2) }",
        'a { background: url("//example.org/x.png") }',
        '@import "https://example.org/x.css";',
        "@import url('https://example.org/x.css');",
    ],
)
def test_catches_outside_style(css):
    assert len(checks.outside_styles(css)) == 1


def test_sound_resources_pass():
    html = (
        '<script src="_static/x.js"></script><a href="https://example.org">x</a>'
        '<link rel="canonical" href="https://example.org/">'
    )
    assert checks.outside_resources(soup(html + SOUND)) == []
    assert checks.outside_styles('a { background: url("../x.png") } b { background: url(data:,) }') == []


@pytest.mark.parametrize(
    "html",
    [
        '<a href="nowhere.html">x</a>',
        '<a href="#nowhere">x</a>',
        '<a href="other.html#nowhere">x</a>',
        '<a href="/page.html">x</a>',
        '<a href="../outside.html">x</a>',
        '<img src="nowhere.png">',
        '<link rel="stylesheet" href="nowhere.css">',
        '<a href="http://localhost:8000/">x</a>',
        '<a href="file:///home/x">x</a>',
        '<a href="folder/">x</a>',
        '<meta http-equiv="Refresh" content="0; url=nowhere.html">',
    ],
)
def test_catches_dead_link(tmp_path, html):
    site = tmp_path / "site"
    (site / "folder").mkdir(parents=True)
    (tmp_path / "outside.html").touch()
    (site / "other.html").write_text('<p id="there"></p>')
    (site / "page.html").write_text(html)
    assert len(checks.dead_links(site, "page.html")) == 1


def test_sound_links_pass(tmp_path):
    (tmp_path / "other page.html").write_text('<p id="thére"></p>')
    (tmp_path / "page.html").write_text(
        '<i id="here"></i><a href="#">top</a><a href="#here">x</a>'
        '<a href="other%20page.html?q=1#th%C3%A9re">x</a>'
        '<a href="https://example.org/">x</a><a href="mailto:a@example.org">x</a>'
    )
    assert checks.dead_links(tmp_path, "page.html") == []


@pytest.mark.parametrize(
    "html",
    [
        '<img src="x.png">',
        '<img src="x.png" alt=" ">',
        '<img src="../_images/x.png" alt="../_images/x.png">',
        '<div class="cell_output"><img src="x.png" alt="A curve"></div>',
        "<figure><p>A drawing</p></figure>",
        '<figure><figcaption><span class="caption-number">Fig. 1</span></figcaption></figure>',
    ],
)
def test_catches_image_without_text(html):
    assert len(checks.image_problems(soup(html))) == 1


def test_sound_images_pass():
    assert checks.image_problems(soup(SOUND + '<img src="x.png" alt="" role="presentation">')) == []


@pytest.mark.parametrize(
    "html",
    [
        "<p>See {numref}<code>fig-x</code>.</p>",
        "<p>{glue:text}</p>",
        "<p>$$ x $$</p>",
        "<p>$x_1$ units</p>",
        "<p>\\( x \\)</p>",
        "<p>the \\alpha of</p>",
        "<p>```{note}</p>",
        "<p>::: {note}</p>",
        "<p>[[link]]</p>",
        "<p>Fig. ??</p>",
        "<p>(target)=</p>",
        "<p>\n:name: fig-x</p>",
        "<p>accuracy nan %</p>",
        "<p>Traceback (most recent call last):</p>",
        "<p>Warning: look out</p>",
        '<div class="cell_output"><div class="highlight"><pre>x.py:1: UserWarning: deprecated</pre></div></div>',
        '<div class="cell_output"><div class="highlight"><pre>\nValueError: no</pre></div></div>',
        '<span class="katex-error">x</span>',
        '<aside class="system-message">x</aside>',
        '<span class="problematic">x</span>',
        '<div class="output stderr">x</div>',
        '<div class="math">x</div>',
    ],
)
def test_catches_raw_text(html):
    assert checks.text_problems(soup(html)) != []


def test_sound_text_passes():
    assert checks.text_problems(soup(SOUND)) == []


OUTPUT = nbformat.v4.new_output("stream", name="stdout", text="2")
GLUED = nbformat.v4.new_output("display_data", data={"application/papermill.record/text/plain": "2"})


@pytest.fixture
def built(tmp_path):
    """A function that writes a page and the execution that a build keeps, and returns what the check finds."""

    def check(source=NOTEBOOK, html=SHOWN, cells=("1 + 1", "x = 2"), counts=(1, 2), output=OUTPUT):
        page, kept = tmp_path / "page.md", tmp_path / "cache/executed/1/base.ipynb"
        page.write_text(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        ran = [nbformat.v4.new_code_cell(c, execution_count=n) for c, n in zip(cells, counts, strict=True)]
        ran[0].outputs = [output]
        nbformat.write(nbformat.v4.new_notebook(cells=ran), kept)
        return checks.cell_problems(page, soup(html), tmp_path / "cache")

    return check


def test_catches_cells_that_did_not_run(built):
    assert "format_name" in built(source=NOTEBOOK.replace("    format_name: myst\n", ""))[0]
    assert "did not execute this page" in built(cells=("1 + 1", "x = 3"))[0]
    assert "cell 2 did not run" in built(counts=(1, None))[0]


def test_catches_cells_that_complained(built):
    assert "complained" in built(output=nbformat.v4.new_output("error", ename="ValueError", evalue="no"))[0]
    assert "complained" in built(output=nbformat.v4.new_output("stream", name="stderr", text="hm"))[0]


def test_catches_cells_that_are_not_shown(built):
    assert "1 cells to show, 0 on the page" in built(html="")[0]
    assert "output of cell 1 is not on the page" in built(html='<div class="cell"></div>')[0]


def test_cells_that_ran_pass(built):
    assert built() == []
    assert built(html='<div class="cell"></div>', output=GLUED) == []
    assert built(source="# Plain page\n", html="") == []


def test_catches_bad_downloads(tmp_path):
    source, page, download = tmp_path / "page.md", tmp_path / "page.html", tmp_path / "page.ipynb"
    source.write_text(NOTEBOOK)

    def problems(html, *cells):
        page.write_text(html)
        checks.parse.cache_clear()
        if cells:
            nbformat.write(nbformat.v4.new_notebook(cells=cells), download)
        return checks.download_problems(tmp_path, "page.html", source)

    link = '<a href="page.ipynb">download</a>'
    cell = nbformat.v4.new_code_cell
    assert problems("") == ["no notebook to download"]
    assert "is no notebook" in problems(link)[0]
    download.write_text("{}")
    assert "is no notebook" in problems(link)[0]
    assert "1 of the page's 2 code cells" in problems(link, cell("1 + 1"))[0]
    assert "holds outputs" in problems(link, cell("1 + 1", outputs=[OUTPUT]), cell("x = 2"))[0]
    assert problems(link, cell("1 + 1"), cell("x = 2")) == []


# A browser


def test_sound_page_passes(broken):
    seen = broken(SOUND)
    assert seen == browser_checks.Visit(accessibility={"light": [], "dark": []})


@pytest.mark.parametrize(
    "body",
    [
        '<img src="https://example.org/x.png" alt="A dot">',
        '<script src="http://example.org/x.js"></script>',
        '<script>fetch("https://example.org/").catch(() => {})</script>',
        '<script>new WebSocket("ws://example.org/")</script>',
        '<link rel="stylesheet" href="https://example.org/x.css">',
        "<style>@font-face {font-family: x; src: url(https://example.org/f)} p {font-family: x}</style><p>x</p>",
    ],
)
def test_catches_outside_request(broken, body):
    assert any("example.org" in url for url in broken(body, themes=()).outside)


def test_catches_failed_request(broken):
    assert "404" in broken('<img src="nowhere.png" alt="A dot">', themes=()).failed[0]
    assert "404" in broken('<link rel="stylesheet" href="/outside-the-sub-path.css">', themes=()).failed[0]


def test_catches_complaint_on_the_console(broken):
    assert broken("<script>console.error('no')</script>", themes=()).console == ["error: no"]
    assert broken("<script>console.warn('hm')</script>", themes=()).console == ["warning: hm"]
    assert "uncaught" in broken("<script>nowhere()</script>", themes=()).console[0]


@pytest.mark.parametrize(
    ("rule", "body", "head"),
    [
        ("image-alt", f'<img src="{PIXEL}">', "<title>Page</title>"),
        ("document-title", "", ""),
        ("empty-heading", "<h2></h2>", "<title>Page</title>"),
        ("color-contrast", '<p style="color: #ccc; background: #fff">pale</p>', "<title>Page</title>"),
    ],
)
def test_catches_inaccessible_page(broken, rule, body, head):
    found = broken(body, head).accessibility
    assert all(any(problem.startswith(rule) for problem in found[theme]) for theme in browser_checks.THEMES)


def test_catches_what_is_wrong_in_the_dark_only(broken):
    found = broken(
        "<p>x</p>",
        "<title>Page</title><style>@media (prefers-color-scheme: dark)"
        "{ body { background: #111; color: #222 } }</style>",
    ).accessibility
    assert found["light"] == []
    assert found["dark"] != []


def test_catches_page_that_stays_light(broken):
    found = broken("<script>document.documentElement.dataset.theme = 'light'</script>").accessibility
    assert found == {"light": [], "dark": ["the page does not turn dark with the system"]}


@pytest.mark.parametrize(
    "body",
    ['<div style="width: 500px">wide</div>', "<p>" + "x" * 500 + "</p>", '<p style="margin-left: 370px">outside</p>'],
)
def test_catches_page_wider_than_its_window(broken, body):
    assert "in a window of 375 px" in broken(body, themes=()).too_wide[0]


def test_box_that_scrolls_fits(broken):
    seen = broken('<div style="overflow-x: auto"><div style="width: 500px">wide</div></div>', themes=())
    assert seen.too_wide == []
