"""Milliseconds that the page's API takes for a move of a control: median and 95th percentile.

    python benchmarks/page.py
    python benchmarks/page.py --cold

With `--cold` the seconds of processor time until a view's first figure, and until its last answer,
each view in a process of its own that has answered nothing before.

Each position of each slider and choice (at most `MOST` of each, spread) is asked for twice with
every other control at its default; the first time counts, as an answer is then new. Searches and
simulations (`slow`) are what the page asks for afterwards, and are not counted.
"""

import statistics
import subprocess
import sys
import time

from starlette.testclient import TestClient

from shardwise.apps.page.app import page_app
from shardwise.apps.page.controls import written
from shardwise.apps.page.view import PageView
from shardwise.apps.page.views import VIEWS

MOST = 12
MEDIAN, LATE = 100.0, 300.0
"""Milliseconds that an answer may take."""


def main() -> None:
    """A row per view."""
    print(f"{'view':12} {'answers':>7} {'median ms':>10} {'95 % ms':>8}")
    with TestClient(page_app(), base_url="http://localhost") as page:
        for view in VIEWS.values():
            page.get(f"/api/view/{view.name}")
            taken = sorted(moves(page, view))
            late = taken[min(len(taken) - 1, int(0.95 * len(taken)))]
            median = statistics.median(taken)
            said = "" if median < MEDIAN and late < LATE else "  over"
            print(f"{view.name:12} {len(taken):7} {median:10.1f} {late:8.1f}{said}")


def cold() -> None:
    """A row per view."""
    firsts = []
    print(f"{'view':12} {'first figure s':>14} {'answer s':>9}")
    for name in VIEWS:
        done = subprocess.run(
            [sys.executable, __file__, "--cold", name], capture_output=True, text=True, check=True
        )
        first, last = map(float, done.stdout.split())
        firsts.append(first)
        print(f"{name:12} {first:14.2f} {last:9.2f}", flush=True)
    print(f"first figure: median {statistics.median(firsts):.2f} s, at most {max(firsts):.2f} s")


def cold_view(name: str) -> None:
    """Asks as the page does: the first answer, a quick one, that of the search."""
    view = VIEWS[name]
    state, since, first, asked = view.state(), time.process_time(), None, "no"
    while asked:
        found = view.document(state, fine=asked == "yes", quick=asked == "quick")
        shown = found.figures or found.player or found.tables
        first = time.process_time() - since if shown and first is None else first
        asked = found.refines
    print(first, time.process_time() - since)


def moves(page: TestClient, view: PageView) -> list[float]:
    """Milliseconds of each answer; what a verb refuses is not one."""
    found = []
    for control in view.controls:
        step = -(-len(control.values) // MOST) if control.values else 1
        for value in control.values[::step]:
            since = time.perf_counter()
            reply = page.get(f"/api/view/{view.name}", params={control.name: written(value)})
            if reply.status_code == 200:
                found.append(1e3 * (time.perf_counter() - since))
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["--cold"]:
        cold()
    elif sys.argv[1:]:
        cold_view(sys.argv[2])
    else:
        main()
