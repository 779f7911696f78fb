"""Files that the page is given, and answers that it cannot draw, in a browser."""

import pytest
from tests.apps.page import test_browser
from tests.apps.page.states import trace_file
from tests.apps.page.test_browser import opened, settled

from shardwise.apps.page import given
from shardwise.commands.program.report import SAMPLE

pytestmark = pytest.mark.browser
browser, address = test_browser.browser, test_browser.address
DROP_ALL = """(files) => {
  const moved = new DataTransfer();
  for (const [name, text] of files) moved.items.add(new File([new Uint8Array(text)], name));
  const how = {dataTransfer: moved, bubbles: true, cancelable: true};
  document.getElementById("control-folder").dispatchEvent(new DragEvent("drop", how));
}"""


def test_a_trace_and_a_report_are_given(browser, address, tmp_path):
    """A file is chosen, a folder dropped; the link has a digest, the command their own names."""
    tab, wrong = opened(browser, address, "simulator?requests=25", 1280, "light")
    tab.set_input_files("input[name=trace-file]", trace_file(tmp_path / "load.jsonl"))
    tab.wait_for_function("() => /trace=given%3A[0-9a-f]{16}/.test(location.hash)")
    settled(tab)
    assert "--trace load.jsonl" in tab.locator("pre[aria-label=Command]").inner_text()
    tab.goto(f"{address}#programs")
    settled(tab)
    before = tab.locator(".says").inner_text()
    files = [[one.name, [*one.read_bytes()]] for one in SAMPLE.iterdir()]
    tab.evaluate(DROP_ALL, [*files, ["notes.txt", [1]]])
    tab.wait_for_function("() => location.hash.includes('given')")
    settled(tab)
    assert tab.locator(".says").inner_text() == before
    assert tab.locator("pre[aria-label=Command]").inner_text() == "shardwise report report --top 40"
    assert wrong == []
    tab.goto(f"{address}#simulator?requests=25")
    settled(tab)
    large = tmp_path / "large.jsonl"
    with large.open("wb") as file:
        file.truncate(given.LARGEST)
    tab.set_input_files("input[name=trace-file]", large)
    tab.get_by_text("over 64 MiB; give less").wait_for()
    tab.goto(f"{address}#programs?folder=given:0123456789abcdef")
    settled(tab)
    assert "choose the file again" in tab.locator("[role=alert]").inner_text()
    tab.close()


def test_the_plan_of_a_planner_opens_in_the_simulator(browser, address, tmp_path):
    link = "serving?model=llama-3.2-1b&on=h100&chips=1&input=512&output=32"
    tab, wrong = opened(browser, address, link, 1280, "light")
    with tab.expect_download() as got:
        tab.get_by_text("Plan file").click()
    got.value.save_as(tmp_path / got.value.suggested_filename)
    tab.goto(f"{address}#simulator?requests=25&rate=1&input=512&output=32")
    settled(tab)
    tab.set_input_files("input[name=plan-file]", tmp_path / "serving.yaml")
    tab.wait_for_function("() => /plan=given%3A[0-9a-f]{16}/.test(location.hash)")
    settled(tab)
    assert "simulate serving.yaml" in tab.locator("pre[aria-label=Command]").inner_text()
    assert wrong == []
    tab.close()


def test_an_answer_that_cannot_be_drawn_is_said(browser, address):
    """Its controls stay, and the next answer is drawn."""
    tab, _ = opened(browser, address, "roofline", 1280, "light")
    broken = {"figures": [{"marks": None}]}

    def answer(route):
        found = route.fetch().json()
        route.fulfill(json=found | broken)

    tab.route("**/api/view/**", answer)
    tab.get_by_label("Batch M, typed").fill("300")
    tab.get_by_label("Batch M, typed").press("Enter")
    tab.locator("[role=alert]").wait_for()
    assert "cannot draw the answer" in tab.locator("[role=alert]").inner_text()
    tab.unroute("**/api/view/**")
    tab.get_by_label("Batch M, typed").fill("400")
    tab.get_by_label("Batch M, typed").press("Enter")
    tab.locator("figure svg").first.wait_for()
    assert tab.locator("[role=alert]").count() == 0
    tab.close()
