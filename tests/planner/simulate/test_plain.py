"""Plain loads in counts say what the scheduler says, to the last femtosecond."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.servers import Linear, fleet, pool
from shardwise.planner.simulate.demand import Demand
from shardwise.planner.simulate.plain import is_plain, plain_moments
from shardwise.planner.simulate.run import SimulatedFleet, simulate
from shardwise.planner.simulate.steady import prompt_share_of, steady_outcome, steady_run
from shardwise.scheduling import Request


def both(requests, servers):
    """First and last tokens by the scheduler and in counts, infinite where refused."""
    outcome = simulate(requests, servers)
    told = np.array(
        [
            (np.inf, np.inf) if job.refusal else (job.first_token, job.finished)
            for job in outcome.jobs
        ],
        float,
    ).T
    found = plain_moments([(r.arrival, r.prompt, r.output) for r in requests], servers)
    share = prompt_share_of(outcome)
    preempted = sum(job.preemptions for job in outcome.jobs)
    return told, np.array([found.first, found.last]), (share, found.prompt_share), preempted


@settings(max_examples=150)
@given(
    sizes=st.lists(
        st.tuples(st.floats(0, 0.5), st.integers(1, 300), st.integers(1, 120)),
        min_size=1,
        max_size=60,
    ),
    replicas=st.integers(1, 3),
    page=st.sampled_from((1, 4, 16, 64)),
    tokens=st.integers(128, 3000),
    batch=st.integers(1, 30),
    budget=st.integers(32, 400),
    margin=st.sampled_from((0.0, 0.01, 0.2)),
    routing=st.sampled_from(("shortest_queue", "round_robin")),
)
def test_counts_say_what_the_scheduler_says(
    sizes, replicas, page, tokens, batch, budget, margin, routing
):
    moment, requests = 0.0, []
    for number, (gap, prompt, output) in enumerate(sizes):
        moment += round(gap, 2) if number % 3 else 0.0  # some at one moment
        requests.append(Request(id=number, arrival=moment, prompt=prompt, output=output))
    servers = fleet(
        Linear(),
        replicas=replicas,
        pages=max(1, tokens // page),
        page_size=page,
        batch=batch,
        budget=max(budget, batch + 1),
        margin=margin,
        routing=routing,
    )
    assert is_plain(servers)
    told, found, shares, _ = both(requests, servers)
    assert np.array_equal(told, found)
    assert shares[0] == pytest.approx(shares[1], abs=1e-12)


@settings(max_examples=150)
@given(
    sizes=st.lists(
        st.tuples(st.floats(0, 0.5), st.integers(1, 300), st.integers(1, 120)),
        min_size=1,
        max_size=60,
    ),
    replicas=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    page=st.sampled_from((1, 4, 16, 64)),
    tokens=st.tuples(st.integers(128, 3000), st.integers(128, 3000)),
    batch=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    budget=st.integers(32, 400),
    margin=st.sampled_from((0.0, 0.01, 0.2)),
    routing=st.sampled_from(("shortest_queue", "round_robin")),
    move=st.sampled_from((0.0, 1e-6, 1e-3)),
)
def test_counts_of_two_pools_say_what_their_schedulers_say(
    sizes, replicas, page, tokens, batch, budget, margin, routing, move
):
    moment, requests = 0.0, []
    for number, (gap, prompt, output) in enumerate(sizes):
        moment += round(gap, 2) if number % 3 else 0.0
        requests.append(Request(id=number, arrival=moment, prompt=prompt, output=output))

    def one(place, policy):
        return pool(
            Linear(move=move, base=(0.01, 0.02)[place]),
            replicas=replicas[place],
            pages=max(1, tokens[place] // page),
            page_size=page,
            batch=batch[place],
            budget=max(budget, batch[place] + 1),
            margin=margin,
            routing=routing,
            chips=1 + place,
            policy=policy,
        )

    servers = SimulatedFleet(pool=one(0, "chunked"), prefill=one(1, "prefill"))
    assert is_plain(servers)
    told, found, shares, _ = both(requests, servers)
    assert np.array_equal(told, found)
    assert shares[0] == pytest.approx(shares[1], abs=1e-12)


def test_counts_say_it_where_many_are_preempted_and_some_refused():
    requests = [
        Request(id=i, arrival=0.01 * i, prompt=40 + i % 7, output=900 if i == 50 else 60 + i % 11)
        for i in range(200)
    ]
    servers = fleet(Linear(), replicas=2, pages=50, page_size=16, batch=20, budget=128)
    told, found, _, preempted = both(requests, servers)
    assert preempted > 50
    assert np.sum(np.isinf(told[0])) == 1
    assert np.array_equal(told, found)


def test_a_steady_run_is_the_same_by_either():
    servers, demand = (
        fleet(Linear(), pages=20_000, batch=200, budget=1024),
        Demand(prompts=(64, 128), outputs=(32, 48)),
    )
    fast = steady_run(servers, demand, 15.0, seed=5, counted=300)
    told, _ = steady_outcome(servers, demand, 15.0, seed=5, counted=300)
    assert np.array_equal(fast.times, told.times)
    assert fast.answered == told.answered
    assert fast.moments.prompt_share == pytest.approx(told.moments.prompt_share, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "interleaved"},
        {"order": "priority"},
        {"admission": "reserve"},
        {"max_waiting": 5},
    ],
)
def test_other_rules_are_left_to_the_scheduler(changes):
    assert not is_plain(fleet(Linear(), **changes))
