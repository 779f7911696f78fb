"""Servers that may be lost: `plan serve --spare` plans for it, and the plan's file says so."""

from dataclasses import replace

import pytest
from tests.searched import leave_rows_out

import shardwise as sw
from shardwise.errors import BadRequest, NoFeasiblePlan

ASKED = {"input": 1024, "output": 128, "rate": 40, "tpot": "50ms"}


@pytest.fixture(scope="module")
def planned():
    """The cheapest servers, and the cheapest with one that may be lost."""
    with pytest.MonkeyPatch.context() as patch:
        leave_rows_out(patch)
        return [sw.plan_serve("llama-3-8b", "v5e", **ASKED, spare=n) for n in (0, 1)]


def test_the_others_hold_the_load(planned):
    usual, spared = (p.result for p in planned)
    assert spared["targets"]["spare"] == 1
    assert spared["holds"]
    each = spared["chips"] // spared["replicas"]
    assert spared["chips"] > usual["chips"]
    assert spared["usd_per_hour"] > usual["usd_per_hour"]
    assert spared["replicas"] * each == spared["chips"]


def test_smaller_servers_serve_where_one_may_be_lost(planned):
    """A server that stands by is paid for, so the answer costs at most one more of the usual."""
    usual, spared = (p.result for p in planned)
    assert spared["chips"] <= usual["chips"] + usual["chips"] // usual["replicas"]


def test_the_page_and_the_file_say_it(planned, tmp_path):
    assert "with 1 server lost" in str(planned[1])
    assert "lost" not in str(planned[0])
    file = tmp_path / "plan.yaml"
    sw.save_plan(planned[1].plan, file)
    shown = sw.plan_show(file)
    assert "with 1 server lost" in str(shown)
    run = sw.simulate(file, requests=200)
    assert any("1 server may fail" in said for said in run.warnings)


def test_without_a_rate_there_is_nothing_to_spare():
    with pytest.raises(BadRequest, match="the requests per second"):
        sw.plan_serve("llama-3-8b", "v5e", input=1024, output=128, spare=1)
    with pytest.raises(BadRequest, match="spare is 'two'"):
        sw.plan_serve("llama-3-8b", "v5e", **ASKED, spare="two")


def test_chips_that_suffice_for_the_load_alone_do_not():
    with pytest.raises(NoFeasiblePlan):
        sw.plan_serve("llama-3-8b", "v5e", **{**ASKED, "rate": 1}, max_chips=1, spare=1)


def test_a_plan_that_may_lose_all_its_servers_is_refused(planned):
    plan = planned[1].plan
    with pytest.raises(BadRequest, match="at least one must be left"):
        replace(plan, replicas=1)


def test_start_up_is_of_a_trace(planned, tmp_path):
    file, trace = tmp_path / "plan.yaml", tmp_path / "trace.jsonl"
    sw.save_plan(planned[0].plan, file)
    with pytest.raises(BadRequest, match="start_up needs a load that rises and falls"):
        sw.simulate(file, requests=50, start_up="30s")
    rows = [f'{{"arrival": {n / 4}, "prompt": 500, "output": 16}}' for n in range(1600)]
    trace.write_text("\n".join(rows))
    run = sw.simulate(file, trace=trace, start_up="10s,1min")
    assert [fleet.start_up_seconds for fleet in run.following] == [10, 60]
    assert all(fleet.usd_per_hour > 0 for fleet in run.following)
    assert "servers that follow this trace" in str(run)
