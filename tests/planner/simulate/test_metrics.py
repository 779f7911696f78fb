"""Figures of a simulation that can be followed by hand, and the trace of its steps."""

import json
from itertools import pairwise

import numpy as np
import pytest
from tests.planner.price.test_trace import check_trace
from tests.planner.simulate.servers import Linear, fleet, pool
from tests.planner.simulate.test_bulk import workload
from tests.scheduling.drive import conserved

from shardwise.boundary.records import plain
from shardwise.errors import BadRequest
from shardwise.planner.simulate.figures import UsdOfRun
from shardwise.planner.simulate.metrics import (
    DEFINITIONS,
    REQUEST_COLUMNS,
    Objectives,
    latencies,
    levels,
    request_rows,
    summary,
)
from shardwise.planner.simulate.run import SimulatedFleet, simulate
from shardwise.planner.simulate.step_trace import step_events
from shardwise.scheduling import Request, Speculation

STEP = Linear(base=0.1, read=0, decode=0, prefill=0, pairs=0)
"""Every step takes a tenth of a second."""


def request(number, arrival, prompt, output, **more):
    return Request(id=number, arrival=arrival, prompt=prompt, output=output, **more)


def three():
    """The second comes while the first decodes; the third is alone and has one token."""
    return [request(0, 0, 16, 4), request(1, 0.15, 16, 2), request(2, 2, 16, 1)]


def test_times_by_hand():
    # Steps end at 0.1 (first prompt), 0.2, 0.3 (with the second prompt), 0.4; then 2.1.
    times = latencies(simulate(three(), fleet(STEP)))
    assert times.ttft == pytest.approx([0.1, 0.15, 0.1])
    assert times.e2el == pytest.approx([0.4, 0.25, 0.1])
    assert times.tpot[:2] == pytest.approx([0.1, 0.1])
    assert np.isnan(times.tpot[2])
    assert times.itl == pytest.approx([0.1] * 4)
    assert times.pace == pytest.approx([0.1, 0.125, 0.1])


def test_interactivity_is_of_the_whole_request():
    """Tokens of the answer over the time from arrival to the last: 10, 8 and 10 a second."""
    outcome = simulate(three(), fleet(STEP))
    shares = [summary(outcome, Objectives(pace=1 / n)).good_share for n in (7.9, 8.1, 10.1)]
    assert shares == pytest.approx([1, 2 / 3, 0])


def test_a_summary_by_hand():
    outcome = simulate(three(), fleet(STEP, usd=36.0, chips=4))
    told = summary(outcome, Objectives(ttft=0.12, tpot=1))
    assert told.completed == 3
    assert told.duration == pytest.approx(2.1)
    assert (told.total_input_tokens, told.total_output_tokens) == (48, 7)
    assert told.request_throughput == pytest.approx(3 / 2.1)
    assert told.output_throughput == pytest.approx(7 / 2.1)
    assert told.total_token_throughput == pytest.approx(55 / 2.1)
    assert told.request_goodput == pytest.approx(2 / 2.1)
    assert told.good_share == pytest.approx(2 / 3)
    assert told.mean_ttft_ms == pytest.approx(350 / 3)
    assert told.median_e2el_ms == pytest.approx(250)
    assert told.p99_itl_ms == pytest.approx(100)
    assert told.utilisation == pytest.approx(0.5 / 2.1)
    assert told.steps == 5
    assert told.chip_hours == pytest.approx(4 * 2.1 / 3600)
    assert told.usd == pytest.approx(36 * 2.1 / 3600)
    # Chunks alone made two of the five steps; the mixed one took no longer for its chunk.
    assert told.prompt_share_of_time == pytest.approx(2 / 5)
    usd = told.usd_per_million_tokens
    assert usd.input * 48 + usd.output * 7 == pytest.approx(1e6 * told.usd)
    assert usd.all == pytest.approx(1e6 * told.usd / 55)


def test_no_price_no_dollars_and_no_objectives_no_goodput():
    told = summary(simulate(three(), fleet(STEP)))
    assert told.usd is None
    assert told.usd_per_million_tokens == UsdOfRun(input=None, output=None, all=None)
    assert "request_goodput" not in plain(told)


def test_hits_refusals_and_rows():
    keys = (1, 2, 3)
    requests = [
        request(0, 0, 48, 2, keys=keys),
        request(1, 5, 49, 2, keys=keys),
        request(2, 9, 10**6, 2),
    ]
    outcome = simulate(requests, fleet(STEP))
    told = summary(outcome)
    assert told.hit_rate == pytest.approx(48 / 97)
    assert told.prefilled_tokens == 49
    assert told.refused == {"longer than the cache": 1}
    rows = [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in request_rows(outcome)]
    assert [r["hit_tokens"] for r in rows] == [0, 48, 0]
    assert "the cache has 1,000" in rows[2]["refusal"]
    assert rows[2]["ttft_seconds"] is None
    assert rows[0]["tpot_seconds"] == pytest.approx(0.1)


def test_every_metric_is_defined_and_named_as_vllm_names_it():
    told = plain(summary(simulate(three(), fleet(STEP)), Objectives(ttft=1)))
    for name in ("request_throughput", "request_goodput", "output_throughput"):
        assert name in told
        assert name in DEFINITIONS
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert {f"mean_{name}_ms", f"median_{name}_ms", f"p99_{name}_ms"} <= set(told)
        assert name in DEFINITIONS
    json.dumps(told)


def test_levels_over_time():
    outcome = simulate([request(i, 0, 16, 11) for i in range(4)], fleet(STEP, batch=2))
    (replica,) = summary(outcome).replicas
    assert replica.max_waiting == replica.max_running == 2
    # 2.2 s in all: two wait for the first 1.1 s, two run throughout.
    assert replica.mean_waiting == pytest.approx(1.0)
    assert replica.mean_running == pytest.approx(2.0)
    moments = levels(outcome.replicas[0])[:, 0]
    assert all(a < b for a, b in pairwise(moments))
    # Two of a second each, and two seconds of nothing between them.
    outcome = simulate([request(0, 0, 16, 10), request(1, 3, 16, 10)], fleet(STEP))
    (replica,) = summary(outcome).replicas
    assert replica.mean_running == pytest.approx(2 / 4)


def test_guesses_cost_their_share_of_a_step():
    def duration(cost):
        guess = Speculation(method="draft", tokens=2, acceptance=0, cost=cost)
        parts = SimulatedFleet(pool=pool(STEP, lookahead=2), speculation=guess)
        return summary(simulate([request(0, 0, 16, 11)], parts)).duration

    assert duration(0.0) == pytest.approx(1.1)
    assert duration(0.25) == pytest.approx(1.1 + 10 * 2 * 0.25 * 0.1)


def test_objectives_must_be_positive():
    with pytest.raises(BadRequest, match="objective ttft is 0 s; it must be positive"):
        Objectives(ttft=0)


def test_the_trace_has_every_step_and_request():
    outcome = simulate(workload(3), fleet(replicas=2), keep_steps=True)
    document = step_events(outcome)
    check_trace({**document, "traceEvents": _without_async(document)})
    steps = [e for e in document["traceEvents"] if e.get("cat") == "step"]
    told = summary(outcome)
    assert len(steps) == told.steps
    busy = sum(e["dur"] for e in steps) / 1e6
    assert busy == pytest.approx(told.utilisation * told.duration * 2, rel=1e-4)
    begins = [e for e in document["traceEvents"] if e["ph"] == "b"]
    assert len(begins) == 2 * told.completed
    early = step_events(outcome, until=1.0)["traceEvents"]
    assert 0 < len(early) < len(document["traceEvents"])
    assert max(e["ts"] for e in early if e["ph"] == "X") < 1e6


def _without_async(document):
    return [e for e in document["traceEvents"] if e["ph"] in "XM"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prefill": pool()}, "the prefill pool has policy 'chunked'; it must be 'prefill'"),
        ({"pool": pool(policy="prefill")}, "policy 'prefill' emits no answers"),
        (
            {"pool": pool(policy="static"), "prefill": pool(policy="prefill")},
            "static batches prefill for themselves",
        ),
        (
            {"speculation": Speculation(tokens=2, acceptance=0.5)},
            "the scheduler looks 0 tokens ahead and speculation guesses 2",
        ),
    ],
)
def test_fleets_that_make_no_sense_are_refused(changes, text):
    with pytest.raises(BadRequest) as error:
        SimulatedFleet(**{"pool": pool(), **changes})
    assert text in str(error.value)


def test_loads_that_make_no_sense_are_refused():
    with pytest.raises(BadRequest, match="the trace holds no request"):
        simulate([], fleet())
    with pytest.raises(BadRequest, match="two requests of the trace have the same id"):
        simulate([request(1, 0, 5, 5)] * 2, fleet())
    with pytest.raises(BadRequest, match="replicas is 0; it must be at least 1"):
        pool(replicas=0)


def test_what_the_decode_pool_cannot_hold_is_refused_before_it_is_prefilled():
    parts = SimulatedFleet(pool=pool(pages=10), prefill=pool(policy="prefill", pages=100))
    outcome = simulate([request(0, 0, 100, 100), request(1, 0, 100, 20)], parts)
    assert "the cache has 10" in outcome.jobs[0].refusal
    assert outcome.jobs[0].prefilled == 0
    assert conserved(outcome.jobs[1])


def test_targets_of_a_plan_stay_where_an_option_names_another():
    own = Objectives(ttft=1.0, tpot=0.04)
    assert Objectives(ttft=2.0).over(own) == Objectives(ttft=2.0, tpot=0.04)
