"""Seconds until a view's first figure in a browser, from a new page and a new profile each time: of
the clock, and of the processors of page and browser.

    python benchmarks/page_first.py RUNS.jsonl
    python benchmarks/page_first.py RUNS.jsonl --views start training

A run begins where the address is opened, once `shardwise ui` has said where it listens (`starts`:
the seconds until then), and ends where a figure, a player or a table is drawn. Processors tell more
than the clock where other work runs beside it; the record has both, and the load at that time. Runs
that the file has are not made again: stopped, it goes on. Needs playwright and Debian's chromium.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from shardwise.apps.page.views import VIEWS

RUNS = 5
MEDIAN, WORST = 1.5, 3.0
"""Seconds that a view's first figure may take."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
FLAGS += ("--disable-background-networking",)
DRAWN = """() => document.querySelector(".answer figure svg, .answer .tables table") !== null"""
PATIENCE = 300_000
"""Milliseconds after which a run is given up."""
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Make what is missing, then a row per view."""
    asked = argparse.ArgumentParser()
    asked.add_argument("record", type=Path)
    asked.add_argument("--views", nargs="*", default=list(VIEWS))
    said = asked.parse_args()
    lines = said.record.read_text().splitlines() if said.record.exists() else []
    known = [json.loads(line) for line in lines]
    with sync_playwright() as started:
        path = shutil.which("chromium")
        chromium = started.chromium.launch(executable_path=path, args=list(FLAGS))
        for place in range(RUNS):
            for view in said.views:
                if sum(row["view"] == view for row in known) <= place:
                    known.append(first(chromium, view))
                    with said.record.open("a") as file:
                        file.write(json.dumps(known[-1]) + "\n")
        chromium.close()
    report(known)


def first(chromium: Browser, view: str) -> dict[str, Any]:
    """A run: the page and the browser's context are its own."""
    since = time.perf_counter()
    words = [sys.executable, "-m", "shardwise", "ui", "--port", "0", "--at", view]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as page:
        assert page.stderr is not None
        address = page.stderr.readline().split(" at ")[1].split(" until ")[0]
        starts = {"starts": time.perf_counter() - since, "starts_cpu": spent(page.pid)}
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        tab = context.new_page()
        before, of_page = browser_spent(page.pid), spent(page.pid)
        since = time.perf_counter()
        tab.goto(address)
        tab.wait_for_function(DRAWN, timeout=PATIENCE)
        took = time.perf_counter() - since
        found = {
            "view": view,
            "seconds": took,
            "page_cpu": spent(page.pid) - of_page,
            "browser_cpu": browser_spent(page.pid) - before,
            "load": os.getloadavg()[0],
            "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        }
        context.close()
        page.terminate()
    return found | starts


def spent(pid: int) -> float:
    """Seconds of the processor of a process; 0 of one that has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / TICKS


def browser_spent(page: int) -> float:
    """Those of all that this process has begun, but the page."""
    return sum(spent(pid) for pid in begun(os.getpid()) if pid != page)


def begun(pid: int) -> list[int]:
    """Processes that a process began, and those that they began."""
    own = [int(one) for one in _words(f"/proc/{pid}/task/{pid}/children")]
    return own + [pid for one in own for pid in begun(one)]


def _words(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError:
        return []


def report(rows: list[dict[str, Any]]) -> None:
    """Medians and worst of each view."""
    print("| view | runs | clock [s] | worst [s] | page CPU [s] | browser CPU [s] | both, worst |")
    print("|---|---|---|---|---|---|---|")
    for view in dict.fromkeys(row["view"] for row in rows):
        own = [row for row in rows if row["view"] == view]
        clock, page, browser = (
            [row[name] for row in own] for name in ("seconds", "page_cpu", "browser_cpu")
        )
        both = [one + other for one, other in zip(page, browser, strict=True)]
        late = "" if median(both) <= MEDIAN and max(both) <= WORST else " over"
        cells = [median(clock), max(clock), median(page), median(browser), max(both)]
        print("|", view, "|", len(own), "|", " | ".join(f"{one:.2f}" for one in cells) + late, "|")
    loads = [row["load"] for row in rows]
    starts = median(row["starts_cpu"] for row in rows)
    print(f"load {min(loads):.1f} to {max(loads):.1f}; until the page listens {starts:.2f} s CPU")


if __name__ == "__main__":
    main()
