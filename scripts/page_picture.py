"""The page in one picture, docs/site/static/page.png: what `shardwise ui` shows of a training plan.

It needs playwright, Chromium and Pillow, which matplotlib brings (`pip install '.[browser,docs]'`).
"""

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from shardwise.apps.page.run import running

OUT = Path(__file__).parents[1] / "docs" / "site" / "static" / "page.png"
LINK = "training"
SIZE = {"width": 1280, "height": 860}
COLOURS = 96
"""Of the picture: enough for text and charts, and a third of the bytes."""
ANSWERED = """() => {
  const shown = document.querySelector("[data-at]")
  return shown?.dataset.at === location.hash && shown.ariaBusy === "false"
}"""
"""Whether the last answer is drawn, a search's too."""


def shot() -> bytes:
    """The page as a browser draws it, once its search has answered."""
    with running() as url, sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport=SIZE, color_scheme="light")
        tab.goto(f"{url}#{LINK}")
        tab.wait_for_function(ANSWERED, timeout=90_000)
        tab.wait_for_timeout(500)
        drawn = tab.screenshot()
        browser.close()
    return drawn


if __name__ == "__main__":
    image = (
        Image.open(io.BytesIO(shot())).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    )
    image.save(OUT, optimize=True)
    print(f"wrote {OUT.name}: {OUT.stat().st_size:,} bytes")
