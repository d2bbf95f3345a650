"""The built site, served below a sub-path, and one browser for all tests.

HIGHWAY_SITE names another built site to look at; its book is the folder two levels above it.
"""

import os
import threading
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import browser_checks
import pytest
import static_checks
from browser_checks import SUB_PATH
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[3]
SITE = Path(os.environ.get("HIGHWAY_SITE", ROOT / "_build/html")).resolve()
MADE_BY_THE_BUILD = {"search.html", "genindex.html", "py-modindex.html"}


def pytest_generate_tests(metafunc):
    """Run `page` tests for each page that shows something, `chapter` tests for each that has a source.

    All tests of a page run in one worker of pytest-xdist (--dist loadgroup), since they share its visits.
    """
    shown = static_checks.shown_pages(SITE) or ["index.html"]
    for name, pages in (("page", shown), ("chapter", [p for p in shown if p not in MADE_BY_THE_BUILD])):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, [pytest.param(p, marks=pytest.mark.xdist_group(p)) for p in pages])


@pytest.fixture(scope="session")
def site():
    if not (SITE / "index.html").is_file():
        pytest.fail("there is no built site: run make book, or make test to build and test it", pytrace=False)
    return SITE


@pytest.fixture(scope="session")
def book():
    """The folder that holds the sources of the site."""
    return SITE.parents[1]


@pytest.fixture(scope="session")
def serve():
    """A function that serves a folder below SUB_PATH, and nothing elsewhere; it returns the origin."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith(SUB_PATH + "/"):
                self.path = self.path.removeprefix(SUB_PATH)
                super().do_GET()
            else:
                self.send_error(404)

        def log_message(self, *args):
            pass

    servers = []

    @cache
    def start(folder):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def browser():
    chromium = browser_checks.find_chromium()
    if chromium is None:
        remedy = "no Chromium found: install chromium (Debian: apt-get install chromium) or Google Chrome"
        if os.environ.get("CI") == "true":
            pytest.fail(remedy, pytrace=False)
        pytest.skip(remedy)
    arguments = list(browser_checks.ARGUMENTS)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def visit(browser, site, serve):
    """A function (page, size) -> Visit of a page of the site, which is loaded once for each size."""
    origin = serve(site)

    @cache
    def look(page, size):
        return browser_checks.visit(browser, f"{origin}{SUB_PATH}/{page}", origin, size)

    return look


@pytest.fixture(scope="session")
def broken(tmp_path_factory, browser, serve):
    """A function that writes a small page from the HTML of its body, visits it, and returns the Visit."""
    folder, numbers = tmp_path_factory.mktemp("broken"), count()

    def look(body, head="<title>Page</title>", size="phone", **options):
        name = f"{next(numbers)}.html"
        (folder / name).write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
            f'<meta name="viewport" content="width=device-width">{head}</head>'
            f"<body><main><h1>Page</h1>{body}</main></body></html>"
        )
        origin = serve(folder)
        return browser_checks.visit(browser, f"{origin}{SUB_PATH}/{name}", origin, size, **options)

    return look
