"""The simulation that confirms a fleet: a part of the fleet stands for one of thousands."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.planner.serve.fleet import Fleet, cheapest, search_fleets
from shardwise.planner.simulate.metrics import Objectives
from shardwise.scheduling import Request
from shardwise.workflows.confirm_fleet import (
    confirm,
    confirmation_lines,
    confirmation_result,
    part_of,
    simulated,
    spread,
    too_long,
)
from shardwise.workflows.serve_words import ServeWords


@pytest.fixture(scope="module")
def request_():
    words = {"input": 1000, "output": 200, "rate": 40_000, "kv": "bf16", "engine": "ideal"}
    return ServeWords("llama-3-8b", "h100:8", objective="cost", **words).request()


@pytest.fixture(scope="module")
def fleet(request_) -> Fleet:
    return cheapest(search_fleets(request_), Objectives(tpot=0.02), layouts=("mixed",))


def pools(fleet: Fleet, decode: int, prefill: int) -> Fleet:
    return replace(fleet, replicas=decode, prefill_replicas=prefill, rate=1000.0)


@pytest.mark.parametrize(
    ("decode", "prefill", "share", "kept"),
    [
        (1000, 0, 0.01, (10, 0)),
        (1000, 0, 1e-9, (1, 0)),
        (1, 0, 1e-9, (1, 0)),
        (3, 0, 1.0, (3, 0)),
        (8371, 257711, 1e-9, (1, 31)),  # the ratio of the pools stays
        (31, 1, 1e-9, (31, 1)),
        (500, 1000, 0.1, (50, 100)),
    ],
)
def test_a_part_of_a_fleet_has_the_load_of_the_whole_on_each_server(
    fleet, decode, prefill, share, kept
):
    whole = pools(fleet, decode, prefill)
    part, of_rate = part_of(whole, share)
    assert (part.replicas, part.prefill_replicas) == kept
    assert part.rate == pytest.approx(whole.rate * of_rate)
    assert part.rate / part.replicas <= whole.rate / whole.replicas * (1 + 1e-12)


def test_a_trace_is_thinned_evenly():
    trace = [Request(id=i, arrival=float(i), prompt=8, output=8) for i in range(10)]
    assert [r.arrival for r in spread(trace, 0.3)] == [0.0, 3.0, 6.0]
    assert spread(trace, 1.0) == trace
    assert spread(trace, 1e-9) == trace[:1]


def test_thousands_of_replicas_are_confirmed_by_a_few(request_, fleet, monkeypatch):
    """Each simulated request weighs every replica; the whole fleet took minutes."""
    seen = {}

    def keep(load, servers, **_):
        seen.update(requests=len(load), replicas=servers.pool.replicas)
        raise InterruptedError

    assert fleet.replicas > 50
    monkeypatch.setattr("shardwise.workflows.confirm_fleet.simulate", keep)
    with pytest.raises(InterruptedError):
        simulated(request_, fleet)
    assert seen["requests"] <= 12_000
    assert seen["replicas"] < fleet.replicas / 4


def test_few_requests_at_once_are_all_counted(request_, fleet):
    load = [Request(id=i, arrival=i * 1e-7, prompt=100, output=10) for i in range(3)]
    times, counted, _ = simulated(request_, fleet, trace=load)
    assert counted >= 1
    assert np.all(np.isfinite(times))


def test_requests_of_millions_of_tokens_are_not_simulated(request_):
    assert not too_long(request_)
    assert "2,001,000 tokens, over 2,000,000" in too_long(
        replace(request_, output_length=2_000_000)
    )


def test_a_part_and_a_short_load_are_said(request_, fleet):
    """One server of thousands, and too few requests for it, are no silent confirmation."""
    found = confirm(request_, [fleet], Objectives(tpot=0.02))
    (line,) = confirmation_lines(found)
    assert f"of {fleet.replicas:,} servers, with their share of the load" in line
    (row,) = confirmation_result(found)["fleets"]
    assert row["simulated_replicas"] < fleet.replicas
    assert row["filled"] == ("too few requests" not in line)
    few = replace(found.fleets[0], simulated_replicas=fleet.replicas, filled=True)
    assert confirmation_lines(replace(found, fleets=(few,)))[0].endswith(("ms", "s"))
