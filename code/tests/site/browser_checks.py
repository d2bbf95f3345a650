"""What can be wrong with a page in a browser: a visit collects it all from one load of the page."""

import shutil
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import TimeoutError

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # A page that asks another host gets no answer: the tests never leave this machine.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
SUB_PATH = "/some/sub/path"  # the site stands below it on the test server
WIDTHS = {"desktop": (1280, 900), "phone": (375, 812)}
THEMES = ("light", "dark")


def find_chromium():
    """The path of a Chromium or Chrome, or None."""
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


@dataclass
class Visit:
    """What happened while a page loaded; every list is empty on a sound page, `accessibility` by theme."""

    outside: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    console: list = field(default_factory=list)
    too_wide: list = field(default_factory=list)
    accessibility: dict = field(default_factory=dict)


def is_own(url, origin):
    """Whether a request for `url` stays with the site at `origin` (scheme://host:port, or file://)."""
    scheme = urlsplit(url).scheme
    return scheme in ("data", "blob") or url.startswith(origin + "/")


def watch(page, origin):
    """Record on a Visit what `page` asks for and complains about from now on."""
    visit = Visit()

    def on_request(request):
        if not is_own(request.url, origin):
            visit.outside.append(request.url)

    def on_response(response):
        if response.status >= 400:
            visit.failed.append(f"{response.status} {response.url}")

    def on_console(message):
        if message.type in ("error", "warning"):
            visit.console.append(f"{message.type}: {message.text}")

    page.on("request", on_request)
    page.on("websocket", lambda socket: visit.outside.append(socket.url))
    page.on("response", on_response)
    page.on("requestfailed", lambda request: visit.failed.append(f"{request.failure} {request.url}"))
    page.on("console", on_console)
    page.on("pageerror", lambda error: visit.console.append(f"uncaught: {error}"))
    return visit


def accessibility_problems(page):
    """One line for each violation, of any impact, that axe-core finds on the page as it is now."""
    # Without preload, axe does not itself fetch style sheets a second time.
    found = Axe().run(page, options={"resultTypes": ["violations"], "preload": False}).response["violations"]
    return [
        f"{v['id']} ({v['impact']}): {v['help']}: " + "; ".join(str(n["target"]) for n in v["nodes"][:3]) for v in found
    ]


def theme_problems(page, theme):
    """Whether a page that has themes takes the one that the system asks for."""
    try:
        page.wait_for_function(
            "theme => [undefined, theme].includes(document.documentElement.dataset.theme)", arg=theme, timeout=3000
        )
    except TimeoutError:
        return [f"the page does not turn {theme} with the system"]
    return []


def width_problems(page):
    """The elements that make the page wider than its window."""
    return page.evaluate("""() => {
        const root = document.documentElement, width = root.clientWidth;
        const wide = Math.max(root.scrollWidth, document.body.scrollWidth);
        if (wide <= width) return [];
        const scrolls = e => e && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
        const culprits = [...document.querySelectorAll("main, main *")]
            .filter(e => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement)).slice(0, 5)
            .map(e => `<${e.tagName.toLowerCase()} class="${e.className}"> ${e.textContent.trim().slice(0, 40)}`);
        return [`${wide} px in a window of ${width} px: ${culprits.join(", ")}`];
    }""")


def visit(browser, url, origin, size="desktop", themes=THEMES):
    """Load `url` in a new window of the given size and look at it in every theme of `themes`."""
    width, height = WIDTHS[size]
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    try:
        page = context.new_page()
        seen = watch(page, origin)
        page.goto(url, wait_until="load" if themes else "networkidle")
        seen.too_wide = width_problems(page)
        for theme in themes:
            page.emulate_media(color_scheme=theme)
            seen.accessibility[theme] = theme_problems(page, theme) + accessibility_problems(page)
        return seen
    finally:
        context.close()
