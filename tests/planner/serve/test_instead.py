"""Other chips are left out by a bound, and the rows are those of a search of all."""

from dataclasses import replace

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


def test_rows_of_other_dtypes_and_pools_bring_something(monkeypatch):
    """Each serves more, costs less, or is faster; those that do not are left out."""
    serving = sw.plan_serve(
        "llama-3-8b", "h100", input=512, output=32, tpot="40ms", rate=20, coarse=True
    ).serving
    this = instead.answer_row(serving)
    changed = [row for row in instead.alternatives(serving, ()) if row.name != "more"]
    assert changed
    for row in changed:
        cheaper = (row.usd_per_hour or 0) / row.rate < (this.usd_per_hour or 0) / this.rate
        quick = instead.faster(row.tpot, this.tpot) or instead.faster(row.ttft, this.ttft)
        assert cheaper or quick or row.rate > this.rate
    same = replace(this, name="fp8", tpot=this.tpot and 0.95 * this.tpot)
    assert not instead._brings(same, this)
    assert instead._brings(replace(same, tpot=this.tpot and 0.8 * this.tpot), this)
    monkeypatch.setattr(instead, "_brings", lambda row, this: False)
    assert [row.name for row in instead.alternatives(serving, ())] == ["more"]
