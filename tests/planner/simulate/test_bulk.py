"""Steps run together and steps run one by one: the same to the last femtosecond."""

from random import Random

import numpy as np
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.planner.simulate.servers import Linear, pool
from tests.scheduling.drive import conserved

from shardwise.planner.simulate.metrics import latencies, summary
from shardwise.planner.simulate.replica import Replica
from shardwise.planner.simulate.run import SimulatedFleet, simulate
from shardwise.scheduling import Request

CHOICES = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["static", "interleaved", "chunked"]),
        "pages": st.sampled_from([20, 40, 1000]),
        "batch": st.integers(1, 8),
        "admission": st.sampled_from(["optimistic", "reserve", "forecast"]),
        "order": st.sampled_from(["fcfs", "priority", "deadline", "aged"]),
        "age": st.just(10**14),
        "host_pages": st.sampled_from([0, 10]),
        "refuse_late": st.booleans(),
        "routing": st.sampled_from(
            ["round_robin", "shortest_queue", "bounded_hash", "prefix_aware"]
        ),
        "replicas": st.integers(1, 3),
    }
)


GRID = Linear(base=0.125, read=0, decode=0, prefill=0, pairs=0, move=0.125 / 64)
"""Every step takes an eighth of a second, so that arrivals on the same grid meet its ends."""


def workload(seed, count=40, grid=0.0):
    """Requests that share beginnings; `grid` puts their arrivals on whole multiples of it."""
    draw = Random(seed)
    at, requests = 0.0, []
    for number in range(count):
        at += draw.choice([0.0, 0.0, draw.expovariate(20), draw.expovariate(1)])
        prompt = draw.randint(1, 200)
        family = draw.randint(0, 3)
        own = draw.randint(0, 12)
        requests.append(
            Request(
                id=number,
                arrival=round(at / grid) * grid if grid else at,
                prompt=prompt,
                output=draw.randint(1, 120),
                keys=tuple((family, i) if i < own else (number, i) for i in range(prompt // 16)),
                priority=draw.randint(0, 2),
                deadline=at + draw.choice([0.05, 1.0, float("inf")]),
            )
        )
    return requests


def both(requests, fleet):
    return [simulate(requests, fleet, single_steps=single) for single in (False, True)]


def told(outcome):
    """Everything that is known of every request and replica."""
    jobs = [
        (
            job.request.id,
            job.started,
            job.first_token,
            job.finished,
            job.refusal,
            job.hit,
            job.host_hit,
            job.prefilled,
            job.decoded,
            job.lost,
            job.preemptions,
        )
        for job in outcome.jobs
    ]
    replicas = [
        (r.record.busy, r.record.step_count, r.record.preempted, r.record.prompt_ticks)
        for r in outcome.replicas
    ]
    return jobs, outcome.placed, replicas, outcome.end


@on_drawn(120, CHOICES, st.integers(0, 10**6), st.sampled_from([float("inf"), 700.0]))
def test_together_is_one_by_one(choices, seed, knee):
    fleet = SimulatedFleet(pool=pool(Linear(knee=knee), **choices))
    together, single = both(workload(seed), fleet)
    assert told(together) == told(single)
    a, b = latencies(together).itl, latencies(single).itl
    assert np.array_equal(np.sort(a), np.sort(b))
    assert all(conserved(job) for job in together.jobs if not job.refusal)
    for replica in together.replicas:
        replica.scheduler.check()


@on_drawn(
    40, st.integers(0, 10**6), st.sampled_from([25, 1000]), st.integers(1, 2), st.integers(1, 2)
)
def test_disaggregated_together_is_one_by_one(seed, pages, prefills, decodes):
    fleet = SimulatedFleet(
        pool=pool(replicas=decodes, routing="shortest_queue", pages=pages),
        prefill=pool(replicas=prefills, policy="prefill", pages=40),
    )
    together, single = both(workload(seed), fleet)
    assert told(together) == told(single)
    assert all(conserved(job) for job in together.jobs if not job.refusal)
    for replica in together.replicas:
        replica.scheduler.check()


@on_drawn(80, CHOICES, st.integers(0, 10**6), st.booleans())
def test_what_happens_at_the_same_moment_does_not_tell_them_apart(choices, seed, split):
    parts = SimulatedFleet(
        pool=pool(GRID, **choices),
        prefill=pool(GRID, policy="prefill", routing=choices["routing"])
        if split and choices["policy"] != "static"
        else None,
    )
    together, single = both(workload(seed, grid=0.125), parts)
    assert told(together) == told(single)


def test_runs_are_fewer_than_steps():
    outcome = simulate(workload(1), SimulatedFleet(pool=pool()))
    record = outcome.replicas[0].record
    assert record.runs < record.step_count / 2


def test_the_tokens_between_are_the_tokens():
    """One time between tokens for each token but the first of each request."""
    for choices in ({}, {"pages": 20}, {"policy": "interleaved"}, {"replicas": 2}):
        outcome = simulate(workload(7), SimulatedFleet(pool=pool(**choices)))
        jobs = [job for job in outcome.jobs if not job.refusal]
        times = latencies(outcome)
        assert times.itl.size == sum(job.emitted - 1 for job in jobs)
        spans = sum((job.finished - job.first_token) / 1e15 for job in jobs)
        assert abs(times.itl.sum() - spans) < 1e-9 * spans
        assert summary(outcome).total_output_tokens == sum(job.request.output for job in jobs)


def test_a_router_sees_what_steps_that_have_begun_evicted():
    """While a run is under way its pages are those of the steps begun so far, not of its start."""
    keys = (1, 2, 3)
    served = pool(GRID, pages=12)
    replica = Replica(0, served.model, served.config)
    replica.scheduler.add(Request(id=0, arrival=0, prompt=48, output=1, keys=keys), 0)
    replica.begin(0)
    start = replica.run.end
    replica.finish()
    # One prompt page and up to nine more for the answer: the twelfth page is a cached one.
    replica.scheduler.add(Request(id=1, arrival=0, prompt=16, output=140), start)
    replica.begin(start)
    start = replica.run.end
    replica.finish()
    replica.begin(start)
    again = Request(id=2, arrival=0, prompt=49, output=1, keys=keys)
    assert replica.run.steps == 139
    hits = []
    for steps in (1, 100, 129, 139):
        replica.sync(start + replica.run.after(steps))
        hits.append(replica.hit_tokens(again))
    assert hits == [48, 48, 32, 32]
    replica.finish()
    replica.scheduler.check()
