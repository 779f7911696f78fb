"""Closed forms and the simulator agree where both apply, within 5 %."""

import numpy as np
import pytest
from tests.planner.simulate.servers import Linear, fleet, pool
from tests.scheduling.drive import conserved

from shardwise.planner.simulate.metrics import latencies, summary
from shardwise.planner.simulate.run import SimulatedFleet, simulate
from shardwise.planner.simulate.traces import poisson
from shardwise.scheduling import Request

SERVICE = 0.05
ALONE = Linear(base=SERVICE, read=0, decode=0, prefill=0, pairs=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "load", [0.6, *(pytest.param(load, marks=pytest.mark.slow) for load in (0.3, 0.8))]
)
def test_one_server_of_fixed_time_waits_as_m_d_1_says(load):
    """Poisson arrivals, one prompt a step, answers of one token: M/D/1, whose mean wait is
    load * service / (2 * (1 - load)) (Pollaczek-Khinchine)."""
    requests = poisson(load / SERVICE, 60_000, 16, 1, seed=1)
    outcome = simulate(requests, fleet(ALONE, batch=1, policy="interleaved"))
    wait = latencies(outcome).ttft.mean() - SERVICE
    assert wait == pytest.approx(load * SERVICE / (2 * (1 - load)), rel=0.05)
    assert summary(outcome).utilisation == pytest.approx(load, rel=0.02)


def test_even_arrivals_never_wait():
    outcome = simulate(poisson(10, 500, 16, 1, cv=0), fleet(ALONE, batch=1, policy="interleaved"))
    assert np.allclose(latencies(outcome).ttft, SERVICE)


PROMPT, ANSWER, BATCH = 512, 256, 16
SERVER = Linear(base=0.02, read=2e-8, decode=2e-5, prefill=2e-5, pairs=0)


def together(count):
    return [Request(id=i, arrival=0, prompt=PROMPT, output=ANSWER) for i in range(count)]


def decode_step():
    """A full batch at the mean context: the prompt and half of the answer."""
    context = BATCH * (PROMPT + ANSWER / 2)
    return SERVER.base + SERVER.decode * BATCH + SERVER.read * context


def test_a_saturated_interleaved_batch():
    """A request takes one prefill, and a share of ANSWER - 1 steps of the full batch."""
    outcome = simulate(
        together(2000), fleet(SERVER, policy="interleaved", batch=BATCH, budget=PROMPT)
    )
    prefill = SERVER.base + SERVER.prefill * PROMPT
    each = prefill + (ANSWER - 1) * decode_step() / BATCH
    told = summary(outcome)
    assert told.request_throughput == pytest.approx(1 / each, rel=0.05)
    assert told.output_throughput == pytest.approx(ANSWER / each, rel=0.05)


def test_a_saturated_chunked_batch():
    """Prompts ride along: a step costs its decodes and the prompt tokens that keep them coming,
    BATCH * PROMPT / ANSWER of them."""
    outcome = simulate(together(2000), fleet(SERVER, batch=BATCH, budget=512))
    step = decode_step() + SERVER.prefill * BATCH * PROMPT / ANSWER
    told = summary(outcome)
    assert told.output_throughput == pytest.approx(BATCH / step, rel=0.05)
    assert told.mean_itl_ms == pytest.approx(step * 1e3, rel=0.05)


def test_static_batches_take_the_longest_of_each():
    """Answers of 1 to 256 tokens in batches of 16: each batch decodes as long as its longest."""
    lengths = np.random.default_rng(3).integers(1, 257, 1600)
    requests = [
        Request(id=i, arrival=0, prompt=PROMPT, output=int(n)) for i, n in enumerate(lengths)
    ]
    outcome = simulate(requests, fleet(SERVER, policy="static", batch=BATCH))
    prefill = SERVER.base + SERVER.prefill * PROMPT * BATCH
    longest = lengths.reshape(-1, BATCH).max(1)
    fixed = SERVER.base + SERVER.decode * BATCH
    total = sum(
        prefill + (n - 1) * (fixed + SERVER.read * BATCH * (PROMPT + (n - 2) / 2)) for n in longest
    )
    assert summary(outcome).duration == pytest.approx(total, rel=1e-6)


# Book 8.1.2: prefill of 8192 tokens takes 0.91 s, a decode step of batch 32 takes 19 ms, answers
# of 512 tokens: P / 0.91 = 32 G / (0.019 * 512), about 3 prefill servers to one that decodes.
BOOK = Linear(base=0, read=0, decode=0, prefill=0.91 / 8192, pairs=0, move=0)
BOOK_DECODE = Linear(base=0.019, read=0, decode=0, prefill=0, pairs=0, move=0)


def disaggregated(prefills, requests):
    shared = {"pages": 40_000, "page_size": 64, "prefix_cache": False}
    parts = SimulatedFleet(
        pool=pool(BOOK_DECODE, batch=32, **shared),
        prefill=pool(
            BOOK,
            replicas=prefills,
            routing="shortest_queue",
            policy="prefill",
            batch=64,
            budget=8192,
            **shared,
        ),
    )
    return simulate(requests, parts)


def book_requests(count):
    return [Request(id=i, arrival=0, prompt=8192, output=512) for i in range(count)]


def test_the_ratio_of_prefill_to_decode_servers_of_the_book():
    decode_rate = 32 / (0.019 * 512)
    ratio = decode_rate * 0.91
    assert ratio == pytest.approx(3, rel=0.01)
    throughput = {
        p: summary(disaggregated(p, book_requests(1500))).request_throughput for p in (1, 2, 3, 4)
    }
    for prefills in (1, 2):
        assert throughput[prefills] == pytest.approx(prefills / 0.91, rel=0.05)
    for prefills in (3, 4):
        assert throughput[prefills] == pytest.approx(decode_rate, rel=0.05)


def test_both_sides_are_busy_at_that_ratio():
    outcome = disaggregated(3, book_requests(1500))
    use = [r.utilisation for r in summary(outcome).replicas]
    assert min(use) > 0.95


def test_moving_the_cache_adds_to_the_second_token_alone():
    def times(move):
        cost = Linear(move=move)
        parts = SimulatedFleet(pool=pool(cost), prefill=pool(cost, policy="prefill"))
        return latencies(simulate([Request(id=0, arrival=0, prompt=100, output=5)], parts))

    slow, fast = times(1e-3), times(0)
    assert slow.ttft[0] == fast.ttft[0]
    assert slow.itl.max() - fast.itl.max() == pytest.approx(0.1, rel=1e-4)
    assert slow.e2el[0] - fast.e2el[0] == pytest.approx(0.1)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
def test_speculation_brings_the_tokens_that_its_formula_says(acceptance):
    from shardwise.scheduling import Speculation

    guess = Speculation(tokens=4, acceptance=acceptance)
    parts = SimulatedFleet(pool=pool(ALONE, lookahead=4, batch=1), speculation=guess)
    requests = [Request(id=0, arrival=0, prompt=16, output=4000)]
    outcome = simulate(requests, parts)
    steps = outcome.replicas[0].record.step_count - 1
    assert 3999 / steps == pytest.approx(guess.tokens_per_step, rel=0.05)
    assert conserved(outcome.jobs[0])
