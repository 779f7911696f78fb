"""The cheapest fleet: the search against every column, rates, refusals, and its explanations."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from shardwise.commands.plan_serve.words import ServeWords
from shardwise.hardware import load_chip
from shardwise.models import load_model
from shardwise.planner.serve.answer import evaluate_serve
from shardwise.planner.serve.choices import smaller_dtypes
from shardwise.planner.serve.fleet import (
    FleetSearch,
    cheapest,
    front,
    ranked,
    refined,
    search_fleets,
    trade_off,
)
from shardwise.planner.serve.grid import grids
from shardwise.planner.serve.limits import breakdown, limits, serve_sensitivity, speculation
from shardwise.planner.serve.planning import nothing_found
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans.servers import JAX, VLLM
from shardwise.roofline.engines import load_engine

GOAL = Objectives(ttft=1.0, tpot=0.03)


def asked(model, on, **words):
    asked = ServeWords(model, on, **{"software": "jax", "pools": "any", **words})
    return asked.requests(on, asked.demand())[0]


@pytest.fixture(scope="module")
def looked() -> FleetSearch:
    return search_fleets(asked("llama-3-8b", "v5e", input=1024, output=256, software="vllm"))


def test_no_column_is_cheaper(looked):
    """Of all columns that meet the objectives in one pool, none costs less than the best."""
    best = cheapest(looked, GOAL, layouts=("mixed",))
    assert best.meets(GOAL)
    for grid in looked.grids:
        times = grid.mixed
        inside = (times.ttft <= GOAL.ttft) & (times.tpot <= GOAL.tpot)
        costs = np.where(inside, grid.server.chips / times.rate, np.inf)
        assert best.chip_seconds <= np.min(costs)


def test_a_wider_search_is_no_dearer_and_a_tighter_target_no_cheaper(looked):
    both, one = cheapest(looked, GOAL), cheapest(looked, GOAL, layouts=("mixed",))
    assert both.chip_seconds <= one.chip_seconds
    costs = [cheapest(looked, replace(GOAL, tpot=t)).chip_seconds for t in (0.1, 0.03, 0.015)]
    assert costs == sorted(costs)


def test_a_rate_is_carried_by_whole_replicas():
    each = cheapest(
        search_fleets(asked("llama-3-8b", "v5e:2x2", input=1024, output=256, kv="bf16")), GOAL
    )
    rate = 3.5 * each.rate
    request = asked("llama-3-8b", "v5e:2x2", input=1024, output=256, kv="bf16", rate=rate)
    fleet = cheapest(search_fleets(request), GOAL, layouts=("mixed",))
    assert fleet.rate == rate
    assert fleet.replicas >= ceil(rate / each.rate) - 1
    assert fleet.chip_seconds == pytest.approx(fleet.chips / rate)
    apart = cheapest(search_fleets(request), GOAL, layouts=("disaggregated",))
    assert apart.prefill_replicas >= 1
    assert apart.chips == 4 * (apart.replicas + apart.prefill_replicas)


def test_dollars_are_chip_hours_at_the_price(looked):
    fleet = cheapest(looked, GOAL)
    usd, price = fleet.usd_per_million, fleet.piece.chip.price
    assert price is not None
    hours = {name: usd[name] / price.usd_per_chip_hour for name in ("input", "output", "all")}
    spent = (hours["input"] * 1024 + hours["output"] * 256) / 1e6 * 3600
    assert spent == pytest.approx(fleet.chip_seconds)
    assert hours["all"] * (1024 + 256) / 1e6 * 3600 == pytest.approx(fleet.chip_seconds)


def test_the_plan_holds_what_is_in_flight(looked):
    """The plan is a legal one, its batch fits, and it is priced with the same steps."""
    fleet = cheapest(looked, GOAL)
    plan = fleet.plan()
    assert plan.batch >= fleet.running
    longest = replace(plan, batch=max(1, int(fleet.running)))
    fits = evaluate_serve(longest, looked.request.cfg, fleet.piece)
    assert fits.peak_bytes_per_chip <= 1.1 * fleet.piece.chip.require("hbm_usable_bytes")
    assert fits.tpot_seconds.expected == pytest.approx(fleet.step, rel=0.1)


def test_nothing_fits_and_nothing_is_fast_enough():
    request = asked("llama-3-70b", "v5e:1x1", input=1024, output=256)
    assert "fits no slice of v5e" in str(nothing_found(search_fleets(replace(request, goal=GOAL))))
    request = asked("llama-3-8b", "v5e:2x2", input=1024, output=256)
    tight = replace(request, goal=Objectives(ttft=0.001, tpot=0.05))
    said = str(nothing_found(search_fleets(tight)))
    assert "the nearest, on v5e:2x2" in said
    assert "has TTFT" in said
    many = replace(request, rate=1e4, goal=GOAL, max_chips=4)
    assert "plan --on v5e with --max-chips" in str(nothing_found(search_fleets(many)))


def test_8_bits_are_offered_where_the_software_stores_and_the_chip_multiplies_them():
    cfg, h100, v5e = load_model("llama-3-8b"), load_chip("h100"), load_chip("v5e")
    assert smaller_dtypes(VLLM, cfg, h100).weights == "fp8"
    assert smaller_dtypes(VLLM, cfg, v5e) is None  # it has no fp8, and vLLM stores no int8
    assert smaller_dtypes(JAX, cfg, v5e).weights == "int8"
    small = smaller_dtypes(JAX, load_model("gpt-oss-20b"), v5e)
    assert (small.weights, small.kv) == ("checkpoint", "int8")


def test_quantized_weights_are_multiplied_as_stored():
    """fp8 matmuls of an H100 are faster than bf16 ones of the same fp8 weights."""
    request = asked("llama-3-8b", "h100:1", input=1024, output=256, weights="fp8", kv="bf16")
    (dtypes,) = request.dtypes
    stored, computed = (
        grids(request, request.pieces[0], replace(dtypes, matmuls=m))[0]
        for m in ("stored", "compute")
    )
    assert np.all(stored.prefill < 0.8 * computed.prefill)


def test_the_front_is_one(looked):
    fleets = trade_off(looked, GOAL)
    assert len(fleets) > 2
    assert fleets == front(fleets)
    steps = [f.tpot for f in fleets]
    assert steps == sorted(steps)
    assert all(f.meets(GOAL) for f in fleets)
    costs = [f.chip_seconds for f in fleets]
    assert costs == sorted(set(costs), reverse=True)
    assert fleets[-1] == cheapest(looked, GOAL)


def test_refining_stays_on_the_mesh(looked):
    fleet = ranked(looked, GOAL)[0]
    for fine in refined(looked.request, fleet, GOAL):
        assert (fine.server.mesh, fine.piece, fine.chunk) == (
            fleet.server.mesh,
            fleet.piece,
            fleet.chunk,
        )


def test_the_parts_of_a_step(looked):
    """Cache grows with the sequences, dense weights do not; no part alone is longer than all."""
    fleet = cheapest(looked, GOAL)
    found = breakdown(looked.request, fleet, np.array([8.0, 16.0, 32.0]))
    assert found.kv[1:] / found.kv[:-1] == pytest.approx([2, 2], rel=0.05)
    assert found.matmuls == pytest.approx(np.full(3, found.matmuls[0]), rel=0.05)
    memory = found.matmuls + found.kv + found.other
    for part in (memory, found.flops, found.network):
        assert np.all(part <= found.expected)


def test_all_of_the_engine_is_its_part(looked):
    """Nothing of an ideal one; kernels are most of a small step's, sequences come on top."""
    running, fleet = np.array([8.0, 64.0]), cheapest(looked, GOAL)
    ideal = replace(looked.request, engine=load_engine("ideal"))
    assert breakdown(ideal, fleet, running).engine == pytest.approx([0, 0], abs=1e-12)
    engine = load_engine("vllm")
    parts = breakdown(replace(looked.request, engine=engine), fleet, running).engine
    layers = looked.request.cfg.layers
    sequences = engine.sequence_seconds * running / fleet.server.mesh.get("data", 1)
    assert np.all(parts > sequences + 4 * layers * engine.kernel_seconds)
    quick = replace(engine, kernel_seconds=0.0)
    less = breakdown(replace(looked.request, engine=quick), fleet, running).engine
    assert np.all(less < parts - 4 * layers * engine.kernel_seconds)


def test_what_limits():
    """Where TPOT is short, bandwidth: batches stay small; without a target of time, not capacity
    alone decides; network is nothing on one chip; no gain is negative or more than the tenth."""
    request = asked("llama-3-8b", "h100:1", input=64, output=512, kv="bf16")
    goal = Objectives(ttft=1.0, tpot=0.012)
    fleet = cheapest(search_fleets(request), goal)
    gains = limits(request, fleet, goal)
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert gains["network"] == pytest.approx(0, abs=1e-12)
    assert gains["HBM bandwidth"] > 0.03
    assert all(g >= -0.005 for g in gains.values())
    moved = serve_sensitivity(request, fleet, goal)
    by = {one.name: one.cost for one in moved}
    assert by["prompt tokens"] > 1 < by["answer tokens"]
    assert by["time per token"] < 1, "a looser target lets more run at once"
    assert {name: 1 - by[name] for name in gains} == gains
    weights = [one.weight for one in moved]
    assert weights == sorted(weights, reverse=True)


def test_speculation_pays_where_steps_wait_for_memory():
    """One sequence: a step with guesses costs no more, so any acceptance pays; a full batch of a
    long-context model less so."""
    request = asked("llama-3-8b", "v5e:2x2", input=64, output=64, kv="bf16")
    fleet = cheapest(search_fleets(request), Objectives(tpot=0.2))
    alone, full = (speculation(request, replace(fleet, running=n)) for n in (1.0, 2000.0))
    assert alone.helps
    assert not full.helps
