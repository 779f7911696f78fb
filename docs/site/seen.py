"""What only a browser shows of the built pages: that none scrolls sideways, and that a search puts
concepts or a task first.

`faults(HTML)` says what is wrong. It needs playwright and Chromium (`pip install '.[browser]'`).
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from held import pages

WIDTHS = (390, 768, 1100, 1366)
"""A telephone, a tablet, and two laptops, in pixels."""
WORDS = (
    *("FSDP", "tensor parallelism", "pipeline", "ZeRO", "remat", "MFU", "mesh", "slice"),
    *("TTFT", "KV cache", "latency", "cost", "out of memory", "slow", "does not fit", "checkpoint"),
    *("train", "serve", "experts", "microbatch", "own chip", "calibrate", "compile", "layout"),
)
"""What readers type."""
FIRST = ("site/concepts", "site/tasks/")
RESULT = "#search-results ul.search li a"
SAID = "#search-summary, .search-summary"
OPENED = "document.querySelectorAll('details').forEach(one => { one.open = true })"
"""What is folded counts, too: a reader opens it."""
WIDE = "document.documentElement.scrollWidth - window.innerWidth"


def faults(html: Path) -> Iterator[str]:
    """Everything that is wrong with the pages of a folder, as a browser lays them out."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    path, html = shutil.which("chromium"), html.resolve()
    if sync_playwright is None or path is None:
        print("not looked at in a browser: it needs pip install '.[browser]' and chromium")
        return
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.route("http*://**", lambda route: route.abort())
        for name, one in pages(html):
            yield from _wide(page, name, one)
        for word in WORDS:
            yield from _searched(page, html, word)
        browser.close()


def _wide(page, name: str, path: Path) -> Iterator[str]:
    page.goto(path.as_uri(), wait_until="load")
    page.evaluate(OPENED)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        over = page.evaluate(WIDE)
        if over > 0:
            yield f"{name}: {over} pixels wider than a window of {width}"


def _searched(page, html: Path, word: str) -> Iterator[str]:
    page.goto(f"{(html / 'search.html').as_uri()}?q={word}")
    page.wait_for_function(
        "document.querySelector('#search-summary, .search-summary')?.textContent"
    )
    page.wait_for_timeout(200)
    found = page.query_selector(RESULT)
    address = str(found.get_attribute("href")) if found else "nothing"
    if not address.startswith(FIRST):
        yield f"a search for {word!r} puts {address} first, and neither a concept nor a task"
