"""Every view in a browser: `pytest -m browser`, with playwright, Debian's chromium, axe-core.

CI installs them (`.ci/run`) and builds `page/`, which brings axe-core. Pictures of every view are
kept under `$SHARDWISE_SHOTS`, where that is set. What is drawn is read from the CSV that the view
saves, and held against the documents of the commands that the view names.
"""

import csv
import io
import json
import os
import re
import shlex
import shutil
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from tests.apps.page.states import base, other_words, report_folder, start, trace_file

from shardwise.apps.cli import cli
from shardwise.apps.page.run import running
from shardwise.apps.page.views import VIEWS

pytestmark = pytest.mark.browser
AXE = Path(__file__).parents[3] / "page" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
FLAGS += ("--disable-background-networking",)
WIDTHS, THEMES = (1280, 390), ("light", "dark")
BOTH = ((1280, "light"), (390, "dark"))
"""Each width and each theme once."""
WAIT = 90_000
"""Milliseconds for a search, beside other workers."""
PLAYED = ("pipeline", "batching", "hbm", "systolic")
"""Players, whose colours are named below them."""
RELATIVE, ABSOLUTE = 1e-9, 1e-15
"""How near a drawn number lies to one of its command."""
OVERLAPS = """() => {
  const found = [], boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const clips = (e) => e && e !== document.body &&
    (/auto|scroll|hidden/.test(getComputedStyle(e).overflow) && !(e instanceof SVGElement)
      ? e : clips(e.parentElement));
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.textContent.trim() || node.parentElement.closest("option, script, .skip")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const bys = [];
    for (let c = clips(node.parentElement); c; c = clips(c.parentElement))
      bys.push(c.getBoundingClientRect());
    for (const box of range.getClientRects()) {
      const a = {left: box.left, right: box.right, top: box.top, bottom: box.bottom};
      for (const by of bys) {
        a.left = Math.max(a.left, by.left); a.right = Math.min(a.right, by.right);
        a.top = Math.max(a.top, by.top); a.bottom = Math.min(a.bottom, by.bottom);
      }
      if (a.right - a.left > 1 && a.bottom - a.top > 2) boxes.push([node, a]);
    }
  }
  boxes.sort(([, a], [, b]) => a.top - b.top);
  boxes.forEach(([node, a], i) => {
    for (const [other, b] of boxes.slice(i + 1)) {
      if (b.top > a.bottom) break;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - b.top;
      const least = 0.34 * Math.min(a.bottom - a.top, b.bottom - b.top);
      if (node !== other && wide > 1 && high > least)
        found.push(`${node.textContent.trim()} | ${other.textContent.trim()}`);
    }
  });
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
  return found.slice(0, 20);
}"""
UNFOLDED = """#root { height: auto !important; }
.answer, .side { overflow: visible !important; max-height: none !important; }"""
"""A narrow page as long as all that it has."""
OPEN = "() => document.querySelectorAll('details').forEach((one) => { one.open = true; })"
"""Controls that are folded can be turned once they are shown."""
ANSWERED = """() => {
  const shown = document.querySelector("[data-at]")
  return shown?.dataset.at === location.hash && shown.ariaBusy === "false"
}"""
SHOWN = """() => [...document.querySelectorAll(".says, figure svg, .tables, .line")]
  .map((one) => one.outerHTML).join("")"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        path = shutil.which("chromium")
        assert path, "install chromium: apt-get install chromium"
        chromium = started.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address():
    with running() as url:
        yield url


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What text controls may name: a report folder, a trace."""
    folder = tmp_path_factory.mktemp("page")
    return {"folder": report_folder(folder / "report"), "trace": trace_file(folder / "trace.jsonl")}


def opened(browser, address, link, width, theme):
    """A tab of the view, and what went wrong there: errors, requests to other hosts."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    tab.on("request", lambda asked: foreign(asked.url, address, wrong))
    tab.goto(f"{address}#{link}")
    settled(tab)
    return tab, wrong


def foreign(url, address, wrong):
    if not url.startswith((address, "data:", "blob:", "file:")):
        wrong.append(f"asks {url}")


def settled(tab):
    """Until what stands behind the # has its last answer, a search's too, and that is drawn."""
    tab.wait_for_function(ANSWERED, timeout=WAIT)
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")


# ---- each view at rest ---------------------------------------------------------------------------


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_drawn(browser, address, name, width, theme):
    tab, wrong = opened(browser, address, name, width, theme)
    assert tab.locator("[role=alert]").count() == 0, tab.locator("[role=alert]").inner_text()
    assert tab.evaluate(OVERLAPS) == []
    if width < 800:  # and what is scrolled to
        unfolded = tab.add_style_tag(content=UNFOLDED)
        assert tab.evaluate(OVERLAPS) == []
        unfolded.evaluate("one => one.remove()")
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


# ---- each control --------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "theme"), BOTH)
@pytest.mark.parametrize("name", VIEWS)
def test_every_control_redraws_what_the_command_says(browser, address, files, name, width, theme):
    """By keyboard, or by a word. The URL then brings back the same picture."""
    tab, wrong = opened(browser, address, base(name, ""), width, theme)
    for control in VIEWS[name].controls:
        tab.goto(f"{address}#{base(name, control.name, files)}")
        settled(tab)
        moved(tab, control, files)
        same_as_its_commands(tab, f"{name}, {control.name}")
        assert tab.evaluate(OVERLAPS) == [], control.name
    link, after = tab.url, tab.evaluate(SHOWN)
    tab.goto("about:blank")
    tab.goto(link)
    settled(tab)
    assert tab.evaluate(SHOWN) == after
    assert [one for one in wrong if "400" not in one] == []
    tab.close()


def moved(tab, control, files):
    """Turn a control until an answer differs: what a verb refuses is said, and passed over."""
    tab.evaluate(OPEN)
    field, before = tab.locator(f"#control-{control.name}"), tab.evaluate(SHOWN)
    for word in other_words(control, files):
        turn(field, control, word)
        settled(tab)
        if tab.locator(".error").count() == 0 and tab.evaluate(SHOWN) != before:
            return
    raise AssertionError(f"{control.name} changes nothing")


def turn(field, control, word):
    if control.kind == "slider":
        field.press(word)
    elif control.kind == "flag":
        field.press("Space")
    elif control.kind == "choice":
        field.select_option(word)
    else:
        field.fill(word)
        if control.kind != "text":
            field.press("Enter")


def same_as_its_commands(tab, where):
    """Every number of a line, a dot or a bar stands in the JSON of the commands that are shown."""
    said = sorted(n for line in lines(tab) for n in numbers_of(line))
    drawn = list(drawn_numbers(saved(tab, "CSV").read_text()))
    strange = [n for n in drawn if not near(n, said)]
    assert strange == [], f"{where}: {strange[:3]}"


def lines(tab) -> list[str]:
    return tab.locator("pre[aria-label=Command]").inner_text().splitlines()


@cache
def numbers_of(line: str) -> tuple[float, ...]:
    done = CliRunner().invoke(cli, [*shlex.split(line)[1:], "--json"])
    assert done.exit_code == 0, (line, done.output[-500:])
    return tuple(numbers(json.loads(done.stdout)["result"]))


def numbers(value) -> Iterator[float]:
    """Every number within plain values."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def drawn_numbers(text: str) -> Iterator[float]:
    """Those of the figures in a saved CSV, whose rows are label, x, y, to x, to y, text. Ends of
    rectangles and arrows are places in a drawing, and what stands across (a rule) is a state."""
    within = False
    for row in csv.reader(io.StringIO(text)):
        if not row or row[0].startswith(("figure: ", "table: ")):
            within = bool(row) and row[0].startswith("figure: ")
        elif within and row[1] and row[2] and not row[3]:
            yield from (float(cell) for cell in row[1:3] if re.fullmatch(r"-?[\d.]+(e.*)?", cell))


def near(value: float, known: list[float]) -> bool:
    i, most = bisect_left(known, value), max(RELATIVE * abs(value), ABSOLUTE)
    return any(abs(n - value) <= most for n in known[max(i - 1, 0) : i + 1])


# ---- what is saved -------------------------------------------------------------------------------


def saved(tab, button):
    with tab.expect_download(timeout=WAIT) as waits:
        tab.get_by_role("button", name=button, exact=True).click()
    return Path(waits.value.path())


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_view_saves(browser, address, name):
    """SVG, PNG, the snippet; and a page that needs no server, at every position of a slider."""
    tab, wrong = opened(browser, address, base(name, ""), 1280, "light")
    if tab.locator("figure svg").count():
        title = tab.locator("figcaption").first.evaluate("one => one.firstChild.textContent")
        drawing = saved(tab, f"SVG: {title}").read_text()
        assert drawing.startswith("<svg")
        assert "var(--" not in drawing
        said = unescape(drawing)
        heading = re.findall(r'font-size="14" font-weight="600"[^>]*>([^<]*)</text>', said)
        assert " ".join(heading) == title, "whole, in as many lines as its width takes"
        for label in tab.locator("figure").first.locator(".legend li").all_inner_texts():
            assert name in PLAYED or f">{label.strip()}</text>" in said
        assert saved(tab, f"PNG: {title}").read_bytes().startswith(b"\x89PNG")
    compile(tab.locator("pre[aria-label=Python]").inner_text(), name, "exec")
    sliders = [c for c in VIEWS[name].controls if c.kind == "slider"]
    slider = min(sliders, key=lambda c: len(c.values)) if sliders else None
    if slider:
        tab.get_by_label("Slider of the saved page").select_option(slider.name)
    page = saved(tab, "One HTML file").rename(saved(tab, "CSV").with_suffix(f".{name}.html"))
    tab.goto(page.as_uri())
    settled(tab)
    if slider:
        check_alone(tab, slider)
    assert [one for one in wrong if "400" not in one] == []  # positions that a verb refuses
    tab.close()


def check_alone(tab, slider):
    """A saved page: its slider redraws, the other controls stand still."""
    tab.evaluate(OPEN)
    field, before = tab.locator(f"#control-{slider.name}"), tab.evaluate(SHOWN)
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):
        field.press(key)
        settled(tab)
        if tab.locator(".error").count() == 0 and tab.evaluate(SHOWN) != before:
            break
    else:
        raise AssertionError(f"{slider.name} changes nothing")
    assert (
        tab.locator(".control :is(input, select):disabled").count()
        == tab.locator(".control").count() - 1
    )


# ---- what a person does -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["collective", "pipeline", "systolic", "hbm", "batching"])
def test_play_moves_a_player(browser, address, name):
    tab, wrong = opened(browser, address, name, 1280, "light")
    first = tab.locator("figure svg").first.inner_html()
    tab.get_by_label("Speed").select_option("4")
    tab.get_by_role("button", name="Play", exact=True).click()
    tab.wait_for_function(
        "() => /^([2-9]|\\d\\d)/.test(document.querySelector('.where').textContent)"
    )
    tab.get_by_role("button", name="Step", exact=True).click()
    assert tab.locator("figure svg").first.inner_html() != first
    assert "frame=" in tab.url
    where = tab.locator(".where").inner_text()
    tab.reload()
    settled(tab)
    assert tab.locator(".where").inner_text() == where
    assert wrong == []
    tab.close()


def test_typed_numbers_are_taken_and_history_goes_back(browser, address):
    tab, wrong = opened(browser, address, "roofline", 1280, "light")
    before = tab.evaluate(SHOWN)
    for word in ("300", "4Ki"):
        tab.get_by_label("Batch M, typed").fill(word)
        tab.get_by_label("Batch M, typed").press("Enter")
        settled(tab)
        assert f"m={word}" in tab.url
    assert "4096x8192x32768" in tab.locator("pre[aria-label=Command]").inner_text()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft"):
        tab.locator("#control-k").press(key)
    settled(tab)
    tab.go_back()
    settled(tab)
    assert "k=" not in tab.url, "moves of one slider are one step"
    assert "m=4Ki" in tab.url
    tab.go_back()
    tab.go_back()
    settled(tab)
    assert tab.evaluate(SHOWN) == before
    tab.get_by_role("link", name="Hardware").click()
    settled(tab)
    assert wrong == []
    tab.close()


def test_a_batch_in_sequences_is_the_position_of_its_tokens(browser, address):
    tab, wrong = opened(browser, address, "training?chips=16&batch=64seq&seq=2048", 1280, "light")
    assert tab.locator("#control-batch").evaluate("one => one.ariaValueText") == "128 Ki tokens"
    assert tab.locator("#control-batch-box").input_value() == "64seq"
    assert tab.locator("[role=alert]").count() == 0
    assert "--batch 131072" in tab.locator("pre[aria-label=Command]").inner_text()
    assert wrong == []
    tab.close()


def test_a_view_keeps_its_state_behind_the_menu(browser, address):
    tab, _ = opened(browser, address, "roofline?m=300", 1280, "light")
    tab.get_by_role("link", name="Hardware").click()
    settled(tab)
    tab.get_by_role("link", name="Roofline", exact=True).click()
    settled(tab)
    assert tab.url.endswith("#roofline?m=300")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.get_by_role("button", name="Copy link").click()
    tab.get_by_role("button", name="Link copied").wait_for()
    assert tab.evaluate("() => navigator.clipboard.readText()") == tab.url
    tab.close()


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 1000,
    "tie_word_embeddings": False, "rope_scaling": None, "_name_or_path": "/private",
}  # fmt: skip
DROP = """(text) => {
  const field = document.getElementById("control-model"), moved = new DataTransfer();
  moved.items.add(new File([text], "config.json", {type: "application/json"}));
  const how = {dataTransfer: moved, bubbles: true, cancelable: true};
  field.dispatchEvent(new DragEvent("drop", how));
}"""


def test_a_config_that_is_dropped_is_a_model(browser, address):
    tab, wrong = opened(browser, address, "models", 1280, "light")
    tab.evaluate(DROP, json.dumps(CONFIG))
    tab.wait_for_function("() => location.hash.includes('LlamaForCausalLM')")
    settled(tab)
    assert tab.locator("[role=alert]").count() == 0
    line = tab.locator("pre[aria-label=Command]").inner_text().splitlines()[0]
    assert "private" not in line
    assert numbers_of(line)
    tab.evaluate(DROP, "{")
    assert "paste or drop the text of a config.json" in tab.locator("[role=alert]").inner_text()
    assert wrong == []
    tab.close()


@pytest.mark.parametrize("name", ["roofline", "training", "collective"])
def test_a_phone_shows_control_and_figure_together(browser, address, name):
    tab, _ = opened(browser, address, base(name, ""), 390, "light")
    boxes = [tab.locator(one).first.bounding_box() for one in (".control", "figure svg")]
    for box in boxes:
        assert 0 <= box["y"] < 800, boxes
    tab.close()


def test_an_error_dims_what_was_shown(browser, address):
    tab, _ = opened(browser, address, "roofline", 1280, "light")
    tab.get_by_label("Batch M, typed").fill("nothing")
    tab.get_by_label("Batch M, typed").press("Enter")
    settled(tab)
    assert "it is a number from 1 to 16384" in tab.locator("[role=alert]").inner_text()
    assert tab.locator(".stale").count() == 1
    tab.close()


@pytest.mark.parametrize("task", ["train it", "serve it"])
def test_the_first_answer_leads_to_the_same_plan(browser, address, task):
    words = {**start("start"), "task": task}
    tab, wrong = opened(browser, address, f"start?{urlencode(words)}", 1280, "light")
    said = tab.locator(".says").inner_text()
    tab.get_by_role("link", name="All of this plan").click()
    settled(tab)
    assert tab.locator("[role=alert]").count() == 0
    assert tab.locator(".says").inner_text() == said
    assert wrong == []
    tab.close()


def test_a_quiz_keeps_the_score(browser, address):
    """Enter submits, a unit is taken, the next question is a link away; inputs are typed over."""
    tab, wrong = opened(browser, address, "book?id=5.3.3.step&quiz=yes", 1280, "light")
    tab.locator("#control-answer").fill("310 ms")
    tab.locator("#control-answer").press("Enter")
    settled(tab)
    assert tab.locator(".verdict").inner_text() == "Right. 1 of 1 at the first try."
    tab.get_by_role("link", name="Next question").click()
    settled(tab)
    assert tab.locator(".verdict").count() == 0
    tab.locator("#control-quiz").press("Space")
    settled(tab)
    before = tab.evaluate(SHOWN)
    field = tab.locator("input.typed").first
    field.fill("7")
    field.press("Enter")
    settled(tab)
    assert "set=" in tab.url
    assert tab.evaluate(SHOWN) != before
    assert [one for one in wrong if "400" not in one] == []
    tab.close()


@pytest.mark.parametrize(("width", "theme"), BOTH)
def test_a_lecture_is_turned_by_arrow_keys(browser, address, width, theme):
    """Predict first, then see; a number is checked, and the address keeps the page."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    tab.goto(f"{address}?lecture=5")
    tab.get_by_label("Your answer").fill("1")
    tab.get_by_label("Your answer").press("Enter")
    tab.locator(".verdict").wait_for()
    assert "Not right. It is" in tab.locator(".verdict").inner_text()
    for page in (1, 2, 3):
        tab.keyboard.press("ArrowRight")
        tab.locator("figure svg" if page % 2 else ".predict").first.wait_for()
        assert tab.url.endswith(f"?lecture=5#{page}")
        assert tab.evaluate(OVERLAPS) == []
    tab.keyboard.press("PageUp")
    assert "2 of 3: predict" in tab.locator("h1").inner_text()
    tab.evaluate(AXE.read_text())
    found = tab.evaluate("() => axe.run()")["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    tab.close()
