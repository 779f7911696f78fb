"""Priced servers are kept for the same load at another rate, and say the same as new ones."""

import shardwise as sw
from shardwise.boundary.records import plain
from shardwise.planner.serve import grid

LOAD = {"input": 512, "output": 64, "ttft": "1s", "coarse": True}


def test_another_rate_prices_nothing_again(monkeypatch):
    made, price = [], grid._grids
    monkeypatch.setattr(grid, "_grids", lambda *words: made.append(words) or price(*words))
    grid._KEPT.clear()
    sw.plan_serve("llama-3.2-1b", "h100:2", rate=3, **LOAD)
    first = len(made)
    kept = plain(sw.plan_serve("llama-3.2-1b", "h100:2", rate=5, **LOAD))
    assert first
    assert len(made) == first
    grid._KEPT.clear()
    assert plain(sw.plan_serve("llama-3.2-1b", "h100:2", rate=5, **LOAD)) == kept
    assert len(made) == 2 * first
