"""Every view in a browser: `pytest -m browser`, with playwright, Debian's chromium, axe-core.

CI installs them (`.ci/run`) and builds `page/`, which brings axe-core. Pictures of every view are
kept under `$SHARDWISE_SHOTS`, where that is set.
"""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from tests.apps.commands import run as command

from shardwise.apps.page.run import running
from shardwise.apps.page.views import VIEWS

pytestmark = pytest.mark.browser
AXE = Path(__file__).parents[3] / "page" / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS, THEMES = (1280, 390), ("light", "dark")
WAIT = 60_000
"""Milliseconds for a search, beside other workers."""
TEXTS = {"expression": "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]", "dims": "I=4096,J=8192,K=32768"}
TEXTS |= {"mesh": "X=8,Y=2"}
OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const boxes = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim())
      .map((t) => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
    boxes.forEach(([text, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 2) found.push(`${text} | ${other}`);
    }));
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
  return found;
}"""
SHOWN = """() => [...document.querySelectorAll("figure svg, .tables, .line")]
  .map((one) => one.outerHTML).join("")"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        path = shutil.which("chromium")
        assert path, "install chromium: apt-get install chromium"
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address():
    with running() as url:
        yield url


def opened(browser, address, name, width, theme):
    """A tab of the view, and what went wrong there: errors, requests to other hosts."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    tab.on("request", lambda asked: foreign(asked.url, address, wrong))
    tab.goto(f"{address}#{name}")
    settled(tab)
    return tab, wrong


def foreign(url, address, wrong):
    if not url.startswith((address, "data:", "blob:")):
        wrong.append(f"asks {url}")


def settled(tab):
    """Until the search has answered too, and what it answered is drawn."""
    tab.wait_for_timeout(80)
    tab.wait_for_selector('[data-waits="no"]', timeout=WAIT)
    tab.wait_for_timeout(60)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_drawn(browser, address, name, width, theme):
    tab, wrong = opened(browser, address, name, width, theme)
    assert tab.locator("[role=alert]").count() == 0, tab.locator("[role=alert]").inner_text()
    assert tab.evaluate(OVERLAPS) == []
    tab.evaluate(AXE.read_text())
    found = tab.evaluate("() => axe.run()")["violations"]
    serious = [
        (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert wrong == []
    if shots := os.environ.get("SHARDWISE_SHOTS"):
        tab.screenshot(path=f"{shots}/{name}-{width}-{theme}.png", full_page=True)
    tab.close()


@pytest.mark.parametrize("name", VIEWS)
def test_every_control_redraws(browser, address, name):
    """By keyboard, or by a word; the URL then brings back the same picture."""
    tab, wrong = opened(browser, address, name, 1280, "light")
    for control in VIEWS[name].controls:
        if control.name == "answer":
            continue
        tab.goto(f"{address}#{name}")
        settled(tab)
        before = tab.evaluate(SHOWN)
        moved(tab, control, before)
    link = tab.url
    after = tab.evaluate(SHOWN)
    tab.goto("about:blank")
    tab.goto(link)
    settled(tab)
    assert tab.evaluate(SHOWN) == after
    assert [one for one in wrong if "400" not in one] == []
    tab.close()


def moved(tab, control, before):
    """Turn a control until an answer differs: what a verb refuses is said, and passed over."""
    field = tab.locator(f"#control-{control.name}")
    for word in turns(control):
        turn(tab, field, control, word)
        settled(tab)
        if tab.locator(".error").count() == 0 and tab.evaluate(SHOWN) != before:
            return
    raise AssertionError(f"{control.name} changes nothing")


def turns(control):
    if control.kind == "text":
        return [TEXTS[control.name]]
    if control.kind == "flag":
        return ["yes"]
    if control.kind == "slider":
        return ["ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight", "ArrowRight"]
    return [str(value) for value in control.values if value != control.default][:8]


def turn(tab, field, control, word):
    if control.kind == "slider":
        field.press(word)
    elif control.kind == "flag":
        field.press("Space")
    elif control.kind == "choice":
        field.select_option(word)
    else:
        field.fill(word)


def test_what_is_saved(browser, address, tmp_path, capsys):
    """SVG, PNG, CSV, the command; and a page that needs no server, at every position."""
    tab, wrong = opened(browser, address, "roofline?m=64", 1280, "light")
    saved = {}
    for button in ("CSV", "One HTML file"):
        with tab.expect_download() as waits:
            tab.get_by_role("button", name=button, exact=True).click()
        saved[button] = tmp_path / waits.value.suggested_filename
        waits.value.save_as(saved[button])
    for button, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with tab.expect_download() as waits:
            tab.get_by_role("button", name=button, exact=True).click()
        waits.value.save_as(tmp_path / button)
        content = (tmp_path / button).read_bytes()
        assert content.startswith(begins)
        assert b"var(--" not in content
    line = tab.locator("pre[aria-label=Command]").inner_text().splitlines()[0]
    _, out, _ = command(capsys, *shlex.split(line)[1:], "--json")
    expected = json.loads(out)["result"]["rows"][0]["attainable_flops"]
    assert str(expected).removesuffix(".0") in saved["CSV"].read_text()
    tab.goto(saved["One HTML file"].as_uri())
    settled(tab)
    before = tab.evaluate(SHOWN)
    tab.locator("#control-m").press("ArrowRight")
    settled(tab)
    assert tab.evaluate(SHOWN) != before
    assert tab.locator("#control-k").is_disabled()
    assert [one for one in wrong if not one.startswith("asks file:")] == []
    tab.close()
