"""Pictures that the page saves, and room on small screens, in a browser."""

from xml.etree import ElementTree

import pytest
from tests.apps.page import test_browser
from tests.apps.page.states import base
from tests.apps.page.test_browser import opened, saved, settled

pytestmark = pytest.mark.browser
browser, address = test_browser.browser, test_browser.address
SVG = "{http://www.w3.org/2000/svg}"


DOTS_ON_DEVICES = """() => {
  const boxes = [...document.querySelectorAll("figure svg rect[stroke-width='2']")]
  const inside = (dot, box) => {
    const a = dot.getBoundingClientRect(), b = box.getBoundingClientRect()
    const [x, y] = [(a.left + a.right) / 2, (a.top + a.bottom) / 2]
    return b.left < x && x < b.right && b.top < y && y < b.bottom
  }
  const dots = [...document.querySelectorAll("figure svg circle")]
  return [dots.length, dots.filter((dot) => boxes.some((box) => inside(dot, box))).length]
}"""
"""Dots of a network, and those that rest on a device."""


@pytest.mark.parametrize("shape", ["8", "4x4", "4x4x4"])
def test_a_network_fits_into_the_window_of_a_laptop(browser, address, shape):
    tab, _ = opened(browser, address, f"collective?shape={shape}&frame=1", 1366, "light")
    tab.set_viewport_size({"width": 1366, "height": 768})
    tab.reload()
    settled(tab)
    box = tab.locator("figure").first.bounding_box()
    assert box["y"] + box["height"] <= 768
    tab.close()


def test_dots_that_do_not_move_rest_beside_their_links(browser, address):
    """After a step, and where motion is not wanted while the player plays, too."""
    tab, _ = opened(browser, address, "collective?shape=4x4", 1280, "light")
    tab.get_by_role("button", name="Step", exact=True).click()
    dots, resting = tab.evaluate(DOTS_ON_DEVICES)
    assert dots > 16
    assert resting == 0
    tab.emulate_media(reduced_motion="reduce")
    tab.get_by_role("button", name="Play", exact=True).click()
    tab.wait_for_function("() => document.querySelector('.where').textContent.startsWith('3 ')")
    assert tab.locator("animateMotion").count() == 0
    tab.close()


def test_a_picture_says_which_round_it_shows_and_what_its_signs_mean(browser, address):
    tab, _ = opened(browser, address, "collective?frame=2", 1280, "light")
    title = tab.locator("figcaption .title").first.inner_text()
    drawing = ElementTree.parse(saved(tab, f"SVG: {title}")).getroot()
    words = [one.text for one in drawing.findall(f"{SVG}text")]
    assert "3 of 5: round 2, 16 transfers of 977 KiB each" in words
    assert tab.locator(".key-words").inner_text() in words
    tab.close()


def test_chunks_of_a_rank_differ(browser, address):
    tab, _ = opened(browser, address, "pipeline?schedule=interleaved", 1280, "light")
    texts = tab.locator("figure svg g > text").all_text_contents()
    assert {"0", "0'"} <= set(texts)
    assert "'" in tab.locator(".key-words").inner_text()
    tab.close()
    tab, _ = opened(browser, address, "hbm", 1280, "light")
    assert tab.locator(".key-words").inner_text() == "", "its chunks have rows and numbers"
    tab.close()


def test_what_moves_is_saved_half_way(browser, address):
    """And a title that is longer than the picture has lines."""
    tab, _ = opened(browser, address, "collective?shape=4x4", 640, "light")
    tab.get_by_label("Speed").select_option("0.25")
    tab.get_by_role("button", name="Play", exact=True).click()
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


def test_a_phone_scrolls_to_the_figure_that_a_control_changed(browser, address):
    tab, _ = opened(browser, address, "collective", 390, "light")
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.locator("#control-shape").select_option("4x4")
    settled(tab)
    figure, sheet = (tab.locator(one).bounding_box() for one in ("figure svg >> nth=0", ".side"))
    assert sheet["height"] <= 0.45 * 844
    assert figure["y"] + figure["height"] <= sheet["y"]
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
