"""Milliseconds that the page's API takes for a move of a control: median and 95th percentile.

    python benchmarks/page.py

Each position of each slider and choice (at most `MOST` of each, spread) is asked for twice with
every other control at its default; the first time counts, as an answer is then new. Searches and
simulations (`slow`) are what the page asks for afterwards, and are not counted.
"""

import statistics
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
    main()
