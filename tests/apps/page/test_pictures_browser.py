"""Pictures that the page saves, and room on small screens, in a browser."""

from xml.etree import ElementTree

import pytest
from tests.apps.page import test_browser
from tests.apps.page.states import base
from tests.apps.page.test_browser import opened, saved

pytestmark = pytest.mark.browser
browser, address = test_browser.browser, test_browser.address
SVG = "{http://www.w3.org/2000/svg}"


def test_what_moves_is_saved_where_its_way_ends(browser, address):
    """And a title that is longer than the picture has lines."""
    tab, _ = opened(browser, address, "collective?shape=4x4", 640, "light")
    tab.get_by_role("button", name="Step", exact=True).click()
    tab.wait_for_selector("circle animateMotion", state="attached")
    title = tab.locator("figcaption").first.evaluate("one => one.firstChild.textContent")
    drawing = ElementTree.parse(saved(tab, f"SVG: {title}")).getroot()
    dots = list(drawing.iter(f"{SVG}circle"))
    assert dots
    assert all(float(dot.get("cx", 0)) > 8 for dot in dots)
    caption = [one.text for one in drawing.findall(f"{SVG}text") if one.get("font-size") == "14"]
    assert " ".join(caption) == title
    assert 1 < len(caption) < 6
    tab.close()


def test_a_dashed_line_is_dashed_in_the_saved_key(browser, address):
    tab, _ = opened(browser, address, "roofline", 1280, "light")
    figure = tab.locator("figure").nth(1)
    title = figure.locator(".title").inner_text()
    drawing = ElementTree.parse(saved(tab, f"SVG: {title}")).getroot()
    keys = [one.get("stroke-dasharray") != "none" for one in drawing.findall(f"{SVG}line")]
    shown = figure.locator(".legend .key")
    drawn = shown.evaluate_all("all => all.map((key) => key.classList.contains('dashed'))")
    assert keys == drawn
    assert set(keys) == {True, False}
    tab.close()


def test_a_phone_has_nothing_below_its_screen(browser, address):
    tab, _ = opened(browser, address, base("simulator", ""), 390, "light")
    longer = "() => document.documentElement.scrollHeight - innerHeight"
    assert tab.evaluate(longer) <= 0
    tab.close()


def test_a_laptop_has_the_menu_in_two_lines(browser, address):
    tab, _ = opened(browser, address, "roofline", 1366 - 15, "light")  # less a scroll bar
    tops = "() => new Set([...document.querySelectorAll('nav a')].map((a) => a.offsetTop)).size"
    assert tab.evaluate(tops) == 2
    tab.close()
