"""Every page of the built book, on disk and in a browser."""

from urllib.parse import unquote, urlsplit

import browser_checks
import pytest
import static_checks as checks
from browser_checks import SUB_PATH


def none(problems):
    """Fail with one line for each problem."""
    problems = list(problems)
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.fixture
def soup(site, page):
    return checks.parse(site / page)


@pytest.fixture
def source(site, book, chapter):
    """The source of a chapter."""
    path = (book / chapter).with_suffix(".md")
    assert path.is_file(), f"no source {path}"
    return path


# The files


def test_fetches_nothing_from_elsewhere(soup):
    none(checks.outside_resources(soup))


def test_styles_fetch_nothing_from_elsewhere(site):
    sheets = {p.name: checks.outside_styles(p.read_text(encoding="utf-8")) for p in site.rglob("*.css")}
    assert sheets
    none(f"{name}: {address}" for name, found in sheets.items() for address in found)


def test_links_lead_somewhere(site, page):
    none(checks.dead_links(site, page))


def test_forwarding_pages_lead_somewhere(site):
    forwarding = [p for p in checks.pages(site) if checks.redirect(checks.parse(site / p))]
    none([problem for p in forwarding for problem in checks.dead_links(site, p)])


def test_images_have_text_and_captions(soup):
    none(checks.image_problems(soup))


def test_no_raw_markup_and_no_complaint(soup):
    none(checks.text_problems(soup))


def test_cells_ran(site, source, book, chapter):
    none(checks.cell_problems(source, checks.parse(site / chapter), book / "_build/.jupyter_cache"))


def test_notebook_to_download(site, source, chapter):
    none(checks.download_problems(site, chapter, source) if checks.is_notebook(source) else [])


# A browser


@pytest.mark.parametrize("size", browser_checks.WIDTHS)
def test_asks_only_its_own_server(visit, page, size):
    none(visit(page, size).outside)


@pytest.mark.parametrize("size", browser_checks.WIDTHS)
def test_every_request_succeeds(visit, page, size):
    none(visit(page, size).failed)


@pytest.mark.parametrize("size", browser_checks.WIDTHS)
def test_console_is_silent(visit, page, size):
    none(visit(page, size).console)


@pytest.mark.parametrize("theme", browser_checks.THEMES)
@pytest.mark.parametrize("size", browser_checks.WIDTHS)
def test_accessible(visit, page, size, theme):
    none(visit(page, size).accessibility[theme])


@pytest.mark.parametrize("size", browser_checks.WIDTHS)
def test_fits_its_window(visit, page, size):
    none(visit(page, size).too_wide)


def test_opens_from_disk(browser, site, page):
    seen = browser_checks.visit(browser, (site / page).as_uri(), "file://", themes=())
    none(seen.outside + seen.failed + seen.console)


def test_reads_without_javascript(browser, site, soup, page):
    context = browser.new_context(java_script_enabled=False)
    try:
        tab = context.new_page()
        tab.goto((site / page).as_uri())
        assert tab.locator("main :is(h1, h2) >> visible=true").count() > 0
        formulas = tab.locator("article .katex:not(details .katex)")
        assert formulas.count() == len(soup.select("article .katex:not(details .katex)"))
        assert formulas.evaluate_all("all => all.filter(formula => !formula.checkVisibility()).length") == 0
    finally:
        context.close()


# The theme and the search, once


@pytest.fixture
def tab(browser, site, serve):
    """A function that opens a page of the site, by its path, in a new window of a light desktop."""
    contexts = []

    def goto(path):
        contexts.append(browser.new_context(color_scheme="light", reduced_motion="reduce"))
        tab = contexts[-1].new_page()
        tab.goto(f"{serve(site)}{SUB_PATH}/{path}")
        return tab

    yield goto
    for context in contexts:
        context.close()


def brightness(tab):
    """Mean of red, green and blue of what the page is painted on, from 0 to 255."""
    return tab.evaluate("""() => {
        const colour = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
        return (colour[0] + colour[1] + colour[2]) / 3;
    }""")


def test_theme_follows_the_system(tab, site):
    opened = tab(checks.redirect(checks.parse(site / "index.html")) or "index.html")
    assert brightness(opened) > 200
    opened.emulate_media(color_scheme="dark")
    none(browser_checks.theme_problems(opened, "dark"))
    assert brightness(opened) < 60


def test_theme_switch_darkens_page_and_figures(tab, site):
    images = "article .cell_output img[src$='.svg']"
    drawn = [page for page in checks.shown_pages(site) if checks.parse(site / page).select(images)]
    assert drawn, "no page has a figure"
    opened = tab(drawn[0])
    button = opened.locator(".theme-switch-button:visible").first
    for _ in range(3):
        if opened.locator("html").get_attribute("data-theme") != "dark":
            button.click()
    assert brightness(opened) < 60
    schemes = opened.locator(images).evaluate_all("images => images.map(image => getComputedStyle(image).colorScheme)")
    assert set(schemes) == {"dark"}


def test_search_finds_the_gate(tab, site):
    opened = tab("search.html?q=gate")
    first = opened.locator("#search-results li a").first
    first.wait_for(timeout=10_000)
    found = unquote(urlsplit(first.evaluate("link => link.href")).path).removeprefix(SUB_PATH + "/")
    assert "gate" in checks.parse(site / found).get_text().lower()
