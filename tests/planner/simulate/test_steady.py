"""The steady state: loads under one luck, what holds, and the largest rate that does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.servers import Linear, fleet
from shardwise.planner.serve.replica import averaged
from shardwise.planner.simulate.cost import Lag
from shardwise.planner.simulate.demand import Demand
from shardwise.planner.simulate.metrics import Objectives, latencies, request_rows
from shardwise.planner.simulate.rates import about_rate, largest_rate, rounded
from shardwise.planner.simulate.steady import (
    COUNTED,
    LIMIT,
    hold,
    in_flight,
    part_of,
    steady_outcome,
    steady_run,
)
from shardwise.scheduling import Speculation

DEMAND = Demand(prompts=(64, 128), outputs=(32, 32))
GOAL = Objectives(ttft=0.5, tpot=0.03)


def servers(replicas=1, **changes):
    values = {"pages": 20_000, "batch": 200, "budget": 1024, "routing": "shortest_queue"}
    return fleet(Linear(), replicas=replicas, **{**values, **changes})


@settings(max_examples=20)
@given(st.floats(0.1, 1000), st.integers(0, 100))
def test_every_part_takes_its_requests_over_the_rate(rate, seed):
    requests = list(DEMAND.requests(rate, (10, 100, 5), seed))
    arrivals = np.array([r.arrival for r in requests])
    assert len(requests) == 115
    assert np.all(np.diff(arrivals) >= 0)
    assert arrivals[[9, 109, 114]] == pytest.approx(np.array([10, 110, 115]) / rate)


def test_two_rates_are_compared_under_the_same_luck():
    """The counted requests have the same lengths and gaps, however many fill the servers."""
    slow, fast = (
        list(DEMAND.requests(1.0, (3, 50, 0), 7)),
        list(DEMAND.requests(2.0, (9, 50, 0), 7)),
    )
    slow, fast = slow[3:], fast[9:]
    assert [r.prompt for r in slow] == [r.prompt for r in fast]
    gaps = [np.diff([r.arrival for r in found]) for found in (slow, fast)]
    assert gaps[0] == pytest.approx(2 * gaps[1])


def test_a_run_counts_the_middle_and_answers_what_comes():
    run = steady_run(servers(), DEMAND, 20.0, seed=3, counted=500)
    assert run.times.shape == (3, 500)
    start, end = run.window
    assert (end - start) / 1e15 == pytest.approx(500 / 20, rel=0.02)
    assert run.answered == pytest.approx(1, abs=0.01)
    assert not run.grows
    assert run.running == pytest.approx(in_flight(servers(), DEMAND, 20.0), rel=0.3)
    assert run.good(Objectives(ttft=1e-6)) == 0


def test_the_same_beginning_of_all_prompts_is_computed_once():
    """Of 320 tokens 20 pages are shared: all but the first request find them."""
    plain = Demand(prompts=(320,), outputs=(20,))
    run, outcome = steady_outcome(servers(), plain, 20.0, counted=50)
    shared = replace(plain, prefix=256)
    same, found = steady_outcome(servers(), shared, 20.0, counted=50)
    assert [job.first_hit for job in outcome.jobs[:3]] == [0, 0, 0]
    assert {job.first_hit for job in found.jobs[run.first :]} == {256}
    assert float(np.median(same.times[0])) < float(np.median(run.times[0]))
    quick = steady_run(servers(), shared, 20.0, counted=50)
    assert np.array_equal(quick.times, same.times)


@pytest.mark.parametrize("positions", [(), (0.8, 0.5, 0.3)])
def test_guesses_in_the_mean_are_guesses_that_are_drawn(positions):
    """2.60 tokens a step by position, 2.53 by 0.7 each; every guess takes a tenth of a step."""
    guess = Speculation(
        method="draft",
        tokens=3,
        cost=0.1,
        positions=positions,
        acceptance=0.0 if positions else 0.7,
    )
    pool = servers().pool
    ahead = replace(pool, config=replace(pool.config, lookahead=3))
    drawn = replace(servers(), pool=ahead, speculation=guess)
    demand, rate = Demand(prompts=(64,), outputs=(200,)), 20.0
    mean = averaged(drawn)
    assert mean.speculation is None
    assert mean.pool.config.lookahead == 0
    times = [steady_run(one, demand, rate, counted=200).times.mean(axis=1) for one in (drawn, mean)]
    assert times[1][1:] == pytest.approx(times[0][1:], rel=0.04)
    assert times[1][1] < steady_run(servers(), demand, rate, counted=200).times[1].mean()


def test_requests_that_are_refused_are_never_under_way():
    """Their times are infinite, and the difference of two of them is no number."""
    run = steady_run(servers(pages=20), DEMAND, 20.0, counted=50)
    few = steady_run(servers(pages=6), DEMAND, 20.0, counted=50)
    none = steady_run(servers(pages=2), DEMAND, 20.0, counted=50)
    assert run.running > few.running > none.running == 0


def test_the_largest_rate_holds_and_more_does_not():
    near = about_rate(servers(), DEMAND, GOAL, 150.0)
    assert near is not None
    found = largest_rate(servers(), DEMAND, GOAL, near.rate)
    assert found is not None
    assert found.rate == pytest.approx(near.rate, rel=0.1)
    assert found.kept
    assert found.load <= LIMIT
    assert found.good >= 0.95
    assert all(time <= goal for time, goal in zip(found.times, (0.5, 0.03), strict=False))
    assert not hold(servers(), DEMAND, 1.25 * found.rate, GOAL).kept
    other = steady_run(servers(), DEMAND, found.rate, seed=77)
    assert other.good(GOAL) >= 0.95


def test_no_rate_holds_where_one_request_is_too_slow():
    assert about_rate(servers(), DEMAND, Objectives(tpot=0.005), 1.0) is None


def test_a_queue_that_grows_does_not_hold():
    over = hold(servers(), DEMAND, 1e4, Objectives(ttft=1e6), runs=1)
    assert not over.kept


def test_a_part_of_a_fleet_has_its_part_of_the_load():
    whole = servers(replicas=400)
    part, rate = part_of(whole, DEMAND, 8000.0)
    assert 2 <= part.pool.replicas < 400
    assert rate / part.pool.replicas == pytest.approx(8000 / 400)
    alone = servers(replicas=2)
    assert part_of(alone, DEMAND, 40.0) == (alone, 40.0)


def test_a_rate_is_printed_as_it_was_tried():
    assert rounded(4.439) == 4.43
    assert rounded(99999.0) == 99900
    assert rounded(0.012345) == 0.0123
    assert COUNTED == 2000


def test_what_software_adds_to_a_first_token_is_in_it():
    """In counts and by the scheduler alike; and in the closed forms (`planner/serve/fleet.py`)."""
    plain, lag = servers(), Lag(seconds=0.02, per_token=1e-5, steps=2.5)
    late = replace(plain, pool=replace(plain.pool, model=replace(plain.pool.model, lag=lag)))
    a, b = (steady_run(f, DEMAND, 20.0, seed=3, counted=200) for f in (plain, late))
    told, outcome = steady_outcome(late, DEMAND, 20.0, seed=3, counted=200)
    prompts = b.moments.prompt[b.counted]
    assert b.times[1] == pytest.approx(a.times[1])
    assert b.times[0] - a.times[0] == pytest.approx(0.02 + 1e-5 * prompts + 2.5 * a.times[1])
    assert np.array_equal(b.times, told.times)
    assert latencies(outcome).ttft[b.counted] == pytest.approx(b.times[0])


def test_an_idle_server_answers_at_once():
    """A request an hour meets none: no step is waited for, but the start of its own kernels is."""
    plain = servers(replicas=1)
    lag = Lag(seconds=0.02, per_token=1e-5, steps=11.0, beside=0.05, start=0.5)
    late = replace(plain, pool=replace(plain.pool, model=replace(plain.pool.model, lag=lag)))
    a, b = (steady_run(f, DEMAND, 1 / 3600, seed=3, counted=20) for f in (plain, late))
    assert not b.moments.met.any()
    prompts = b.moments.prompt[b.counted]
    assert b.times[0] == pytest.approx(a.times[0] + 0.5 + 0.02 + 1e-5 * prompts)
    assert b.times[2] - a.times[2] == pytest.approx(b.times[0] - a.times[0])
    told, outcome = steady_outcome(late, DEMAND, 1 / 3600, seed=3, counted=20)
    assert np.array_equal(b.times, told.times)
    assert [row[8] for row in request_rows(outcome)][b.counted] == pytest.approx(b.times[0])


def test_why_a_rate_does_not_hold_is_said():
    assert "more comes than is answered" in hold(servers(), DEMAND, 1e4, Objectives()).why
    assert "times a target" in hold(servers(), DEMAND, 20.0, Objectives(tpot=0.005)).why
    assert hold(servers(), DEMAND, 20.0, GOAL).why == ""
