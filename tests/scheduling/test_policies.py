"""What each policy runs, step by step, on a few requests that can be followed by hand."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.drive import config, drive, request

from shardwise.scheduling.backlog import OrderedQueue
from shardwise.scheduling.requests import Sequence


def steps(setting, requests):
    """(prompt tokens, decoding sequences) of every step."""
    plans = drive(setting, requests).plans
    return [(p.shape.prefill_tokens, p.shape.decodes) for p in plans]


TWO = [request(0, 8, 3), request(1, 8, 5)]


def test_static_pads_to_the_longest_and_waits_for_it():
    requests = [request(0, 4, 3), request(1, 8, 5), request(2, 4, 1, arrival=1)]
    assert steps(config(policy="static"), requests) == [
        (16, 0), (0, 2), (0, 2), (0, 2), (0, 2),
        (4, 0),
    ]  # fmt: skip


def test_interleaved_stops_decoding_for_each_chunk_of_one_prompt():
    assert steps(config(policy="interleaved", budget=4), TWO) == [
        (4, 0), (4, 0), (4, 0), (4, 0), (0, 2), (0, 2), (0, 1), (0, 1),
    ]  # fmt: skip


def test_chunked_decodes_in_every_step_and_fills_the_budget():
    assert steps(config(budget=6), TWO) == [
        (6, 0), (6, 0), (4, 1), (0, 2), (0, 1), (0, 1), (0, 1),
    ]  # fmt: skip


def test_prefill_packs_prompts_and_decodes_nothing():
    assert steps(config(policy="prefill", budget=6), TWO) == [(6, 0), (6, 0), (4, 0)]


def test_pairs_of_a_prompt_do_not_depend_on_its_chunks():
    for budget in (5, 6, 7, 16, 40):
        plans = drive(config(budget=budget), [request(0, 33, 1)]).plans
        assert sum(p.shape.prefill_pairs for p in plans) == 33 * 34 // 2
        assert [p.shape.prefill_context for p in plans] == list(range(0, 33, budget))


def test_slots_and_pages_bound_what_is_admitted():
    requests = [request(i, 8, 10) for i in range(6)]
    by_slots = drive(config(batch=2), requests).plans
    assert max(p.shape.decodes for p in by_slots) == 2
    # Twenty pages of four hold 80 tokens: with 18 each, four fit their longest answers.
    reserved = drive(config(batch=6, admission="reserve"), requests).plans
    assert max(p.shape.decodes for p in reserved) == 4
    hopeful = drive(config(batch=6), requests)
    assert max(p.shape.decodes for p in hopeful.plans) > 4
    assert sum(j.preemptions for j in hopeful.jobs) > 0


def test_the_forecast_admits_more_than_the_reservation():
    """Answers that end one after the other never need their longest at once: 34 pages, 27 then."""
    requests = [request(i, 8, 10 * (i + 1), arrival=2 * i) for i in range(4)]

    def start_of_last(admission):
        jobs = drive(config(admission=admission, budget=16, pages=32), requests).jobs
        assert not any(j.preemptions for j in jobs)
        return jobs[-1].started

    assert start_of_last("forecast") == 6
    assert start_of_last("reserve") == 10


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 30))
def test_a_queue_is_read_in_order_without_being_changed(arrivals, taken):
    queue = OrderedQueue()
    jobs = [Sequence(request(i, 1, 1), (at, i)) for i, at in enumerate(arrivals)]
    for job in jobs:
        queue.push(job)
    ordered = sorted(jobs, key=lambda j: j.order)
    for _ in range(min(taken, len(jobs))):
        assert queue.pop() is ordered.pop(0)
    assert list(queue) == ordered == list(queue)
    assert all(a.order < b.order for a, b in pairwise(queue))
    queue.remove(set(ordered[::2]))
    assert list(queue) == ordered[1::2]
    assert len(queue) == len(ordered[1::2])
