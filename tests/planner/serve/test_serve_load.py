"""Servers under load: closed forms against known queues, and against the simulator."""

from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.commands.plan_serve.words import ServeWords
from shardwise.planner.serve.fleet import Fleet, cheapest, search_fleets
from shardwise.planner.serve.load import Steady, mixed_times, most_busy, waiting
from shardwise.planner.serve.replica import fleet_of
from shardwise.planner.simulate.metrics import Objectives
from shardwise.planner.simulate.steady import steady_run


def steady(running, chunk=4096, **changes):
    values = {"input_length": 1024, "output_length": 256, "percentile": 0.9}
    return Steady(running=running, chunk=chunk, **{**values, **changes})


def test_prompts_that_begin_alike_count_the_rest_and_their_beginning_once():
    """1,024 tokens of which 768 are the same, in steps with room for 128 of them: two chunks, of
    which the mean one comes after 768 + 64 tokens."""
    load, whole = steady(8.0, chunk=136, prefix=768), steady(8.0, chunk=136)
    assert (load.fresh, float(load.chunks), float(whole.chunks)) == (256, 2, 8)
    step = steady(1.0, chunk=128, prefix=768).prompt_step()
    assert (step.prefill_tokens, step.prefill_context) == (128, 768 + 64)
    assert step.prefill_pairs == 128 * (768 + 128)
    assert load.context == whole.context
    assert float(steady(1e6, prefix=768).cached / 1e6) == pytest.approx(256 + 128, rel=0.01)


def test_the_mean_wait_of_one_server_is_that_of_m_d_1():
    """The exponential tail, integrated over all percentiles, is rho S / (2 (1 - rho))."""
    served, busy = 2.0, 0.7
    shares = (np.arange(20000) + 0.5) / 20000
    mean = np.mean([float(waiting(served, busy, p)) for p in shares])
    assert mean == pytest.approx(busy * served / (2 * (1 - busy)), rel=1e-3)


def test_more_servers_wait_less_and_a_full_one_for_ever():
    waits = [float(waiting(1.0, 0.9, 0.9, n)) for n in (1, 2, 4, 8)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == pytest.approx(log(9) / 0.2)
    assert waiting(1.0, 1.0, 0.9) == np.inf
    assert waiting(1.0, 0.05, 0.9) == 0


@given(st.floats(0.01, 2), st.floats(0.05, 20), st.sampled_from([0.5, 0.9, 0.99]))
def test_most_busy_is_the_last_that_is_in_time(served, target, percentile):
    busy = float(most_busy(served, target, percentile))
    if served > target:
        assert busy == 0
        return
    assert served + waiting(served, busy, percentile) <= target
    if busy < 0.99:
        assert served + waiting(served, busy + 0.01, percentile) > target


@settings(max_examples=50)
@given(
    st.floats(1, 500),
    st.floats(0.005, 0.1),
    st.floats(0.0, 0.5),
    st.sampled_from([512, 1024, 8192]),
)
def test_little_holds(running, decode, added, chunk):
    """Requests per second times output tokens times the mean step are the sequences in flight."""
    load = steady(running, chunk)
    found = mixed_times(load, decode, 0.0, decode + added)
    per_prompt = load.chunks * added / load.together
    step = decode + running / 256 * per_prompt
    assert found.rate * 256 * step == pytest.approx(running)
    assert found.prompt_share == pytest.approx(1 - decode / step, abs=1e-9)
    assert found.tpot >= step * (1 - 1e-9)
    assert found.ttft >= decode
    assert found.e2e == pytest.approx(found.ttft + 255 * found.tpot)


def test_no_room_for_prompts_is_no_answer():
    load = steady(512.0, 512)
    assert mixed_times(load, 0.01, 0.0, 0.02).ttft == np.inf


def test_slots_leave_room_for_rarer_numbers():
    load = steady(np.array([1.0, 100.0, 1000.0]))
    assert np.all(load.slots > load.running + load.z * np.sqrt(load.running))
    assert np.all(load.cached > load.running * load.context)


def simulated_beside(model: str, on: str, layout) -> tuple[Fleet, tuple[float, float, float]]:
    """The cheapest fleet by the closed forms, and its 95th percentiles as simulated."""
    words = ServeWords(model, on, input=512, output=128, pools="any")
    (request,) = words.requests(on, words.demand())
    goal = Objectives(ttft=1.0, tpot=0.03)
    fleet: Fleet = cheapest(search_fleets(request), goal, layouts=(layout,))
    assert fleet.meets(goal)
    servers = fleet_of(fleet.plan(), request.cfg, fleet.piece, fleet.prefill_server.piece)
    return fleet, steady_run(servers, words.demand(), fleet.rate).percentiles(0.95)


ONE_POOL = ("llama-3-8b", "v5e:2x2", "mixed")
TWO_POOLS = ("gpt-oss-20b", "h100:1", "disaggregated")


@pytest.mark.parametrize("server", [ONE_POOL, TWO_POOLS], ids="-".join)
def test_closed_forms_agree_with_the_simulation(server):
    """TPOT of one pool within a tenth, of two within a seventh. The closed TTFT is an upper end, as
    a step takes all prompts that wait."""
    fleet, (ttft, tpot, _) = simulated_beside(*server)
    assert (0.9 if server is ONE_POOL else 0.7) < tpot / fleet.tpot < 1.15
    assert ttft < 1.1 * fleet.ttft


@pytest.mark.parametrize("server", [ONE_POOL, TWO_POOLS], ids="-".join)
def test_the_closed_time_to_the_last_token_is_an_upper_end(server):
    fleet, (_, _, e2e) = simulated_beside(*server)
    assert e2e < 1.1 * fleet.e2e
