"""Other chips are left out by a bound, and the rows are those of a search of all."""

import shardwise as sw
from shardwise.hardware import load_chip
from shardwise.planner.serve import instead

CHIPS = [load_chip(name) for name in ("b300", "h200", "l40s", "h100", "rtxpro6000", "v5p", "trn2")]


def test_chips_that_cannot_be_cheapest_are_not_searched(monkeypatch):
    planned = sw.plan_serve("llama-3-8b", "a100", input=512, output=64, coarse=True)
    searched, search = [], instead.search_fleets

    def counted(request):
        searched.append(request.pieces[0].chip.id)
        return search(request)

    monkeypatch.setattr(instead, "search_fleets", counted)
    rows, few = instead._on_others(planned.serving, CHIPS), list(searched)
    for row in rows:
        assert (row.usd_per_hour or 0) >= instead._least_usd(planned.serving, load_chip(row.name))
    searched.clear()
    monkeypatch.setattr(instead, "_least_usd", lambda serving, chip: 0.0)
    assert instead._on_others(planned.serving, CHIPS) == rows
    assert len(rows) == 2
    assert 2 <= len(few) < len(searched)
