"""The closed loop: what it does to a step's seconds, by hand and by what must not change."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.evidence.serving.loop import (
    ClosedLoop,
    LoopSteps,
    PoolTimes,
    first_wave,
    loop_times,
    pool_times,
    queued,
    tokens_per_step,
)
from shardwise.roofline.engines import IDEAL_ENGINE, Arrival

LOOP = ClosedLoop(concurrency=64.0, input_length=1024.0, output_length=512.0)
TOKENIZED = 2e-6 * 1024
MEAN_STEP = 0.010 + 63 / 64 * 0.003
"""Of 64 prompts, 63 are others'."""
HALF_A_STEP = 0.5 * MEAN_STEP
STEPS = LoopSteps(decode=0.010, mixed=0.034, prompt=0.030, full=0.240)
"""Eight prompts in a step take as long as one after the other."""


def others_first(tpot, loop=LOOP):
    """Seconds that a prompt waits for those before it, of 30 ms each."""
    return queued(0.030, (loop.output_length - 1) * tpot, loop.running)


def test_tokens_in_are_tokens_out():
    """128 prompt tokens come in with every step of 64 decodes: one step of eight has a prompt."""
    assert LOOP.prompt_tokens == 128
    assert LOOP.lump == 1024
    assert LOOP.mixed_share == pytest.approx(1 / 8)
    short = ClosedLoop(concurrency=64.0, input_length=1024.0, output_length=8.0)
    assert (short.prompt_tokens, short.lump, short.mixed_share) == (8192, 8192, 1)


def test_seconds_by_hand():
    """10 ms, 34 ms with a prompt in it, a prompt alone 30 ms: (34 - 10) / 8 between tokens, of
    others' prompts."""
    times = loop_times(LOOP, STEPS, IDEAL_ENGINE)
    assert times.tpot == pytest.approx(MEAN_STEP)
    waits = others_first(times.tpot)
    assert times.ttft == pytest.approx(HALF_A_STEP + 0.030 + TOKENIZED + waits)


def test_the_steps_until_a_request_is_looked_at_hold_prompts_too():
    """11 steps from one look at the queue to the next: half of ten more, of 13 ms each. Two parts
    of a batch wait 20 steps for each other."""
    once = loop_times(LOOP, STEPS, IDEAL_ENGINE)
    seldom = replace(LOOP, queue_interval=11.0)
    waited = loop_times(seldom, STEPS, IDEAL_ENGINE)
    assert waited.ttft - once.ttft == pytest.approx(5 * MEAN_STEP)
    engine = replace(IDEAL_ENGINE, arrival=Arrival(balance_steps=20.0))
    two = replace(LOOP, splits=2.0)
    balanced, free = (loop_times(two, STEPS, e) for e in (engine, IDEAL_ENGINE))
    assert balanced.ttft - free.ttft == pytest.approx(20 * MEAN_STEP)
    assert loop_times(LOOP, STEPS, engine).ttft == once.ttft


@pytest.mark.parametrize("length", [1024.0, 128.0, 16.0])
def test_one_request_at_a_time_meets_no_prompt_and_waits_for_no_step(length):
    """Its own prompt is before its first token, however short its answer is."""
    loop = replace(LOOP, concurrency=1.0, output_length=length, queue_interval=11.0, splits=2.0)
    arrival = Arrival(poll_steps=9.0, balance_steps=20.0, equal_wait=0.5, crowd=1.0)
    engine = replace(IDEAL_ENGINE, prefill_wait=0.5, arrival=arrival)
    for equal in (False, True):
        times = loop_times(loop, STEPS, engine, equal)
        assert times.tpot == pytest.approx(0.010)
        assert times.ttft == pytest.approx(0.030 + TOKENIZED)


@pytest.mark.parametrize("wait", [0.0, 0.2, 1.0])
def test_waiting_moves_time_and_makes_none(wait):
    engine = replace(IDEAL_ENGINE, prefill_wait=wait)
    times = loop_times(LOOP, STEPS, engine)
    told = HALF_A_STEP + 0.030 + TOKENIZED + others_first(times.tpot)
    assert times.ttft + 511 * times.tpot == pytest.approx(told + 511 * MEAN_STEP)
    assert times.tpot == pytest.approx(0.010 + (1 - wait) * (MEAN_STEP - 0.010))


def test_requests_of_equal_lengths_meet_prompts_at_every_step_and_no_queue():
    arrival = Arrival(equal_wait=0.5, crowd=0.25)
    engine = replace(IDEAL_ENGINE, arrival=arrival)
    mixed, equal = (loop_times(LOOP, STEPS, engine, e) for e in (False, True))
    assert mixed.tpot == pytest.approx(MEAN_STEP)
    assert equal.tpot == pytest.approx((0.010 + MEAN_STEP) / 2)
    step = 0.010 + 63 / 64 * 0.024
    moved = 511 * (MEAN_STEP - 0.010) / 2
    assert equal.ttft == pytest.approx(0.5 * step + 0.030 + TOKENIZED + moved)
    met = 0.5 * (0.010 + 63 / 64 * 0.024 * (1 / 8 + 0.25 * 7 / 8))
    assert mixed.ttft == pytest.approx(met + 0.030 + TOKENIZED + others_first(mixed.tpot))


@pytest.mark.parametrize("requests", [2, 8, 40])
def test_a_prompt_waits_for_those_before_it_as_when_they_go_round(requests):
    """Requests that take turns at one place of 1 s and are 9 to 11 s elsewhere, one by one."""
    draw = np.random.default_rng(requests)
    back = draw.uniform(0, 10, requests)
    free, waits = 0.0, []
    for _ in range(20_000):
        first = int(np.argmin(back))
        start = max(free, back[first])
        waits.append(start - back[first])
        free = start + 1.0
        back[first] = free + draw.uniform(9, 11)
    told = float(queued(1.0, 10.0, requests))
    mean = np.mean(waits[2000:])
    assert told >= 0.98 * mean - 0.05  # requests that go round in order wait less than at random
    assert told == pytest.approx(mean, abs=1.6)
    if requests > 11:
        assert told == pytest.approx(requests - 11, rel=0.05)


def test_the_first_of_ten_waves_starts_at_once():
    """64 requests of which a step takes eight: 240 ms a step, and the mean of eight of them."""
    told = first_wave(LOOP, STEPS)
    assert told == pytest.approx(0.240 * 4.5 + 64 / 2 * TOKENIZED)
    ten = replace(LOOP, waves=10.0)
    steady, found = (loop_times(loop, STEPS, IDEAL_ENGINE) for loop in (LOOP, ten))
    assert found.tpot == steady.tpot
    assert found.ttft - TOKENIZED == pytest.approx(0.9 * (steady.ttft - TOKENIZED) + 0.1 * told)
    held = loop_times(replace(LOOP, held_steps=20.0), STEPS, IDEAL_ENGINE)
    assert held.ttft - steady.ttft == pytest.approx(20 * MEAN_STEP)


@pytest.mark.parametrize("pools", [False, True])
def test_a_server_without_a_request_before_makes_its_programs_in_the_first_wave(pools):
    """20 s in the first of ten waves are 2 s in the mean, and nothing after it."""
    engine = replace(IDEAL_ENGINE, arrival=Arrival(program_seconds=20.0))
    ten = replace(LOOP, waves=10.0)

    def times(loop):
        if not pools:
            return loop_times(loop, STEPS, engine)
        apart = {"loop": loop, "servers": 1.0, "prefill_servers": 1.0}
        return pool_times(PoolTimes(**apart, prompt=0.03, full=0.24, decode=lambda n: 0.01), engine)

    warm, cold = times(ten), times(replace(ten, cold=1.0))
    assert cold.ttft - warm.ttft == pytest.approx(2.0)
    assert cold.tpot == pytest.approx(warm.tpot)
    assert times(replace(LOOP, cold=1.0)).ttft == times(LOOP).ttft


def test_guesses_yield_tokens():
    assert tokens_per_step(0.0, 0.9) == 1
    assert tokens_per_step(3.0, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    two = replace(LOOP, yields=2.0)
    assert two.mixed_share == 2 * LOOP.mixed_share
    assert loop_times(two, STEPS, IDEAL_ENGINE).tpot == pytest.approx(
        (0.010 + 2 * (MEAN_STEP - 0.010)) / 2
    )


def test_those_beyond_the_memory_wait_their_turn():
    full = ClosedLoop(
        concurrency=128.0, input_length=1024.0, output_length=512.0, most_running=64.0
    )
    alone, queued = (loop_times(x, STEPS, IDEAL_ENGINE) for x in (LOOP, full))
    assert queued.tpot == alone.tpot
    assert queued.ttft == pytest.approx(2 * alone.ttft + 511 * alone.tpot)


def pools(prefill_servers, concurrency=64.0):
    return PoolTimes(
        loop=replace(LOOP, concurrency=np.array([concurrency]), output_length=np.array([501.0])),
        servers=np.array([2.0]),
        prefill_servers=np.array([prefill_servers]),
        prompt=np.array([0.100]),
        full=np.array([0.800]),
        decode=lambda running: 0.010 + 0.0001 * np.asarray(running),
    )


def test_two_pools_go_round_at_the_rate_of_the_slower():
    """Prompts of 100 ms: one server takes 10 a second, so 2 x 64 requests go round in 12.8 s; with
    many of them nobody waits, and 64 sequences decode on each of two servers."""
    found = pool_times(pools(1.0), IDEAL_ENGINE)
    assert found.ttft + 500 * found.tpot == pytest.approx(12.8)
    many = pool_times(pools(1000.0), IDEAL_ENGINE)
    assert many.ttft == pytest.approx(0.1 + TOKENIZED + 0.5 * many.tpot, rel=0.01)
    assert many.tpot == pytest.approx(0.0164, rel=0.01)
    assert found.tpot < many.tpot


def test_a_request_waits_for_a_place_of_a_server_that_decodes():
    """128 requests and 2 x 32 places: each waits as long as an answer takes, and no server holds
    more sequences than it has places."""
    free = pools(1000.0)
    few = replace(free, loop=replace(free.loop, most_running=np.array([32.0])))
    found = pool_times(few, IDEAL_ENGINE)
    assert found.tpot == pytest.approx(0.0132, rel=0.01)
    assert found.ttft == pytest.approx(500 * found.tpot, rel=0.01)
    handing = replace(IDEAL_ENGINE, arrival=Arrival(handover_seconds=0.5))
    handed = pool_times(few, handing)
    assert handed.ttft == pytest.approx(500 * handed.tpot + 2 * 0.5, rel=0.01)


def test_where_servers_of_their_own_prefill_the_first_wave_waits_for_its_prompts():
    engine = replace(IDEAL_ENGINE, prefill_wait=0.9, arrival=Arrival(pool_wait=0.05))
    waits, none = (pool_times(pools(1.0), e) for e in (engine, IDEAL_ENGINE))
    assert waits.ttft - none.ttft == pytest.approx(0.05 * 12.8)
    assert waits.tpot == none.tpot


def test_the_steps_hold_what_is_in_flight():
    loop = ClosedLoop(
        concurrency=np.array([4.0, 4.0]),
        input_length=np.array([1000.0, 20000.0]),
        output_length=np.array([100.0, 100.0]),
    )
    mixed = loop.mixed_step()
    assert mixed.decode_context.tolist() == [4 * 1050, 4 * 20050]
    assert mixed.prefill_tokens.tolist() == [1000, 8192]
    assert mixed.prefill_context.tolist() == [0, (20000 - 8192) / 2]
    # The chunks of a prompt see together what its queries see: I^2 / 2.
    prompt = loop.prompt_step()
    pairs = prompt.prefill_pairs * loop.chunks
    assert pairs == pytest.approx(np.array([1000.0, 20000.0]) ** 2 / 2)
