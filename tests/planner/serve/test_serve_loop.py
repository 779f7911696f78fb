"""The closed loop: what it does to a step's seconds, by hand and by what must not change."""

import numpy as np
import pytest

from shardwise.evidence.serving.loop import ClosedLoop, loop_times

LOOP = ClosedLoop(concurrency=64.0, input_length=1024.0, output_length=512.0)


def test_tokens_in_are_tokens_out():
    """128 prompt tokens come in with every step of 64 decodes: one step of eight has a prompt."""
    assert LOOP.prompt_tokens == 128
    assert LOOP.lump == 1024
    assert LOOP.mixed_share == pytest.approx(1 / 8)
    short = ClosedLoop(concurrency=64.0, input_length=1024.0, output_length=8.0)
    assert (short.prompt_tokens, short.lump, short.mixed_share) == (8192, 8192, 1)


def test_seconds_by_hand():
    """10 ms, 34 ms with a prompt in it, a prompt alone 30 ms: (34 - 10) / 8 between tokens."""
    times = loop_times(LOOP, 0.010, 0.034, 0.030, 0.0)
    assert times.tpot == pytest.approx(0.013)
    assert times.ttft == pytest.approx(0.035)


@pytest.mark.parametrize("wait", [0.0, 0.2, 1.0])
def test_waiting_moves_time_and_makes_none(wait):
    times = loop_times(LOOP, 0.010, 0.034, 0.030, wait)
    assert times.end_to_end(512.0) == pytest.approx(0.035 + 511 * 0.013)
    assert times.tpot == pytest.approx(0.010 + (1 - wait) * 0.003)


def test_those_beyond_the_memory_wait_their_turn():
    full = ClosedLoop(
        concurrency=128.0, input_length=1024.0, output_length=512.0, most_running=64.0
    )
    alone, queued = (loop_times(x, 0.010, 0.034, 0.030, 0.0) for x in (LOOP, full))
    assert queued.tpot == alone.tpot
    assert queued.ttft == pytest.approx(alone.ttft + alone.end_to_end(512.0))


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
