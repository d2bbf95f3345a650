"""The moving picture of the chapter "The gate": its numbers, its keyboard, its themes, and the page without it."""

import re

import numpy as np
import pytest
import torch
from browser_checks import SUB_PATH, accessibility_problems, width_problems

from highway.probes import carry_product
from highway.style import DARK, PALETTE

PAGE = "book/highway/gate.html"
FIGURE = "#fig-gate-picture"
SETTINGS = [(-2, 20, 0), (0, 9, 0), (-4, 49, 0), (-1, 99, 0), (-10, 1, 0), (2, 100, 0), (-2, 49, 0.5), (-6, 100, 2)]


@pytest.fixture
def look(browser, site, serve):
    """A function that opens the page in a new window; it takes the options of a browser context."""
    if not (site / PAGE).is_file():
        pytest.fail(f"the site has no {PAGE}", pytrace=False)
    contexts = []

    def open_page(headers=None, **options):
        contexts.append(browser.new_context(**{"color_scheme": "light", "reduced_motion": "reduce"} | options))
        contexts[-1].set_default_timeout(120_000)  # a busy machine draws slowly
        tab = contexts[-1].new_page()
        if headers:
            tab.route("**/*.html", lambda route: with_headers(route, headers))
        tab.goto(f"{serve(site)}{SUB_PATH}/{PAGE}")
        return tab

    yield open_page
    for context in contexts:
        context.close()


def with_headers(route, headers):
    response = route.fetch()
    route.fulfill(response=response, headers=response.headers | headers)


def move(tab, **values):
    """Set sliders by name: bias, depth or spread."""
    for name, value in values.items():
        tab.locator(f"#gate-{name}").fill(str(value))


def read(tab):
    """The numbers of the sentence, exact, by name."""
    numbers = tab.locator(f"{FIGURE} output data").evaluate_all("all => all.map(one => [one.className, one.value])")
    return {name: float(value) for name, value in numbers}


def shown(text):
    """The number that a reader reads in `7.9 %` or `1.2 × 10⁻⁵ %`."""
    text = text.replace("\u00a0", "").translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")).replace("×10", "e")
    return float(text.rstrip("%")) / (100 if text.endswith("%") else 1)


def mean_gate(bias, spread):
    e = np.linspace(-9, 9, 20_001)
    weight = np.exp(-(e**2) / 2)
    return float(weight @ (1 / (1 + np.exp(-bias - spread * e))) / weight.sum())


def test_its_numbers_are_those_of_the_package(look):
    tab = look()
    for bias, depth, spread in SETTINGS:
        move(tab, bias=bias, depth=depth, spread=spread)
        numbers = read(tab)
        gate = torch.sigmoid(torch.tensor(float(bias), dtype=torch.float64)).item()
        expected = {"gate": gate, "carried": carry_product(bias, depth)}
        if spread:
            mean = mean_gate(bias, spread)
            expected |= {"mean-gate": mean, "mean-carried": (1 - mean) ** depth}
        assert numbers == pytest.approx(expected, rel=1e-9, abs=0), (bias, depth, spread)


def test_the_sentence_rounds_its_numbers(look):
    tab = look()
    output = tab.locator(f"{FIGURE} output")
    assert output.text_content() == "T = 0.119, carried through 20 blocks: 7.90\u00a0%."
    for bias, depth, spread in SETTINGS:
        move(tab, bias=bias, depth=depth, spread=spread)
        for number in output.locator("data").all():
            assert shown(number.text_content()) == pytest.approx(float(number.get_attribute("value")), rel=0.05)


def test_the_points_are_drawn_where_the_numbers_say(look):
    tab = look()
    for bias, depth in ((-2, 20), (-4, 100), (1.5, 3)):
        move(tab, bias=bias, depth=depth)
        numbers = read(tab)
        place = tab.locator(f"{FIGURE} .dot").evaluate_all(
            "dots => dots.map(dot => ['cx', 'cy'].map(name => Number(dot.getAttribute(name))))"
        )
        gate = (46 + (bias + 10) / 14 * 264, 196 - numbers["gate"] * 170)
        carried = (46 + depth / 100 * 264, 196 - (np.log10(numbers["carried"]) + 10) / 10 * 170)
        np.testing.assert_allclose(place, [gate, carried], atol=1e-6)


def test_what_falls_below_the_axis_leaves_the_picture(look):
    tab = look()
    move(tab, bias=2, depth=100)
    assert tab.locator(f"{FIGURE} .dot >> visible=true").count() == 1
    heights = [
        float(y)
        for line in tab.locator(f"{FIGURE} svg path").all()
        for _, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", line.get_attribute("d") or "")
    ]
    assert min(heights) > 20
    assert max(heights) < 197


def test_the_keyboard_moves_it(look):
    tab = look()
    bias = tab.get_by_role("slider", name="gate bias")
    bias.focus()
    for _ in range(5):
        tab.keyboard.press("ArrowLeft")
    assert bias.input_value() == "-2.5"
    assert read(tab)["gate"] == pytest.approx(torch.sigmoid(torch.tensor(-2.5)).item(), rel=1e-6)
    tab.keyboard.press("Tab")
    assert tab.get_by_role("slider", name="blocks").evaluate("slider => slider === document.activeElement")
    tab.keyboard.press("End")
    assert read(tab)["carried"] == pytest.approx(carry_product(-2.5, 100), rel=1e-9)
    assert "−2.5" in tab.locator(f"{FIGURE} label").first.text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_has_the_colours_of_the_book(look, scheme):
    tab = look(color_scheme=scheme)
    move(tab, spread=0.5)
    style = "(element, name) => getComputedStyle(element).getPropertyValue(name)"
    parts = {".line": ("stroke", "highway"), ".dot": ("fill", "highway"), ".spread": ("stroke", "violet")}
    for selector, (part, colour) in parts.items():
        wanted = PALETTE[colour] if scheme == "light" else DARK[PALETTE[colour]]
        rgb = tuple(int(wanted[i : i + 2], 16) for i in (1, 3, 5))
        assert tab.locator(f"{FIGURE} {selector}").first.evaluate(style, part) == f"rgb{rgb}", selector
    inks = tab.locator(f"{FIGURE} svg text, {FIGURE} .axis").evaluate_all(
        "all => all.map(one => getComputedStyle(one)[one.tagName === 'text' ? 'fill' : 'stroke'])"
    )
    assert set(inks) == {tab.locator("main p").first.evaluate(style, "color")}


@pytest.mark.parametrize("width", [320, 375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_is_accessible(look, width, scheme):
    tab = look(viewport={"width": width, "height": 800}, color_scheme=scheme)
    move(tab, spread=1)
    assert not width_problems(tab)
    assert not accessibility_problems(tab)
    for element in tab.locator(f"{FIGURE} :is(svg, input, output)").all():
        box = element.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_it_takes_the_colours_that_the_system_forces(look):
    tab = look(forced_colors="active")
    stroke = tab.locator(f"{FIGURE} .line").first.evaluate("line => getComputedStyle(line).stroke")
    system = tab.evaluate("""() => {
        document.body.insertAdjacentHTML("beforeend", "<p id=probe></p>");
        const probe = document.getElementById("probe");
        probe.style.color = "Highlight";
        probe.style.forcedColorAdjust = "none";
        return getComputedStyle(probe).color;
    }""")
    assert stroke == system


def test_the_still_picture_stands_without_javascript_and_in_print(look):
    still, moving = f"{FIGURE} img", f"{FIGURE} .gate-widget"
    tab = look()
    assert tab.locator(still).is_hidden()
    assert tab.locator(moving).is_visible()
    tab.emulate_media(media="print")
    assert tab.locator(still).is_visible()
    assert tab.locator(moving).is_hidden()
    quiet = look(java_script_enabled=False)
    assert quiet.locator(still).is_visible()
    assert len(quiet.locator(still).get_attribute("alt")) > 100
    assert quiet.locator(moving).count() == 0


def test_it_works_under_a_strict_policy_and_asks_for_nothing(look):
    tab = look(headers={"content-security-policy": "default-src 'self'"})
    assert tab.locator(f"{FIGURE} .gate-widget").is_visible()
    assert tab.locator(f"{FIGURE} img").is_hidden()
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    move(tab, bias=-3, depth=30, spread=0.3)
    assert read(tab)["carried"] == pytest.approx(carry_product(-3, 30), rel=1e-9)
    assert not asked
    assert tab.evaluate(f"document.querySelector('{FIGURE}').getAnimations({{subtree: true}}).length") == 0
    assert tab.locator(f"{FIGURE} .gate-widget [style]").count() == 0
