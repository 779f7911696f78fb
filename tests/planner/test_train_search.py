"""The search finds what pricing every legal plan one by one finds, and says what it looked at."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest
from tests.planner.steps import dense, moe

from shardwise.errors import BadRequest
from shardwise.hardware import boxes, parse_slice
from shardwise.planner.train_search import TrainRequest, batch_units, search
from shardwise.planner.training import evaluate_train, plan_of
from shardwise.plans import MESH_AXES, TrainDtypes, TrainPlan, model_hash
from shardwise.plans.train import PLACINGS, REMAT_POLICIES

DENSE = dense(hidden_size=512, intermediate_size=1536, num_hidden_layers=4, vocab_size=4000)
MOE = moe()


def request(cfg=DENSE, on="v5e:2x2", sequences=16, **changes) -> TrainRequest:
    piece = parse_slice(on)
    given = {
        "cfg": cfg,
        "model": cfg.name,
        "piece": piece,
        "sequences": sequences,
        "sequence_length": 256,
        "dtypes": TrainDtypes(),
        "pins": {},
        "max_hbm_bytes": piece.chip.hbm_usable_bytes / piece.chip.jax_devices_per_chip,
    }
    return TrainRequest(**(given | changes))


def brute(asked: TrainRequest):
    """Every plan of the axes that the search may use, priced by `evaluate_train` alone: yields
    (seconds, memory, plan) of each one that it does not refuse."""
    torus = len(asked.piece.shape) > 1
    layers, hashed = asked.cfg.layers, model_hash(asked.cfg)
    for box in boxes(asked.piece):
        devices = prod(box) * asked.piece.count
        degrees = [d for d in range(1, devices + 1) if devices % d == 0]
        for mesh in product(degrees, repeat=len(MESH_AXES)):
            named = dict(zip(MESH_AXES, mesh, strict=True))
            idle_axis = "data" if torus else "replica"
            if prod(mesh) != devices or named["stage"] > layers:
                continue
            if torus and named["data"] > 1:
                continue  # within a torus slice fsdp stores less over the same links
            if named["replica"] > 1 and (asked.piece.count == 1 or not torus):
                continue  # replica crosses slices
            assert named[idle_axis] == 1 or not torus
            for microbatches, remat, placing in product(
                [2**i for i in range(5)], asked.remat, PLACINGS
            ):
                whole, more = divmod(layers, named["stage"])
                try:
                    plan = TrainPlan(
                        model=asked.model,
                        model_hash=hashed,
                        slice=str(asked.piece),
                        mesh={a: d for a, d in named.items() if d > 1},
                        box=box,
                        placement=placing,
                        global_batch_sequences=asked.sequences,
                        sequence_length=asked.sequence_length,
                        microbatches=microbatches,
                        layers_per_stage=(
                            *[whole + 1] * more,
                            *[whole] * (named["stage"] - more),
                        ),
                        remat=remat,
                        dtypes=asked.dtypes,
                    )
                    answer = evaluate_train(plan, asked.cfg, asked.piece)
                except BadRequest:
                    continue
                yield float(answer.estimate.expected), float(answer.memory.peak()), plan


@pytest.mark.parametrize(
    ("cfg", "on", "sequences", "remat"),
    [
        (DENSE, "v5e:2x2", 16, ("none", "block")),
        (DENSE, "h100:4", 8, ("block",)),
        (MOE, "v5e:2x2", 8, ("none",)),
        (DENSE, "v5e:2x4", 8, ("none",)),
    ],
)
def test_brute_force_agrees(cfg, on, sequences, remat):
    asked = request(cfg, on, sequences, remat=remat)
    everything = list(brute(asked))
    fitting = [row for row in everything if row[1] <= asked.max_hbm_bytes]
    best = min(fitting, key=lambda row: row[0])
    found = search(asked, keep=3)
    assert found.best[0].seconds == pytest.approx(best[0], rel=1e-9)
    assert found.best[0].memory <= asked.max_hbm_bytes
    # Fewer chips were pruned, not legal plans of the whole slice.
    whole = [plan for _, _, plan in everything if prod(plan.box) == asked.piece.chips]
    assert found.legal >= len(whole)


def test_memory_limits_the_choice_as_brute_force_does():
    asked = request(remat=("none", "block"))
    everything = sorted(brute(asked), key=lambda row: row[1])
    limit = everything[len(everything) // 3][1]
    tight = replace(asked, max_hbm_bytes=limit)
    best = min((row for row in everything if row[1] <= limit), key=lambda row: row[0])
    found = search(tight, keep=1).best[0]
    assert found.memory <= limit
    assert found.seconds == pytest.approx(best[0], rel=1e-9)
    # With less than the leanest plan needs, nothing fits and the leanest is the nearest miss.
    none = search(replace(asked, max_hbm_bytes=everything[0][1] * 0.99), keep=1)
    assert none.best == ()
    assert none.nearest.memory == pytest.approx(everything[0][1])


CASES = [
    ("v5p:4x4x4", DENSE, 256),
    ("v5e:4x8", DENSE, 64),
    ("4*h100:8", MOE, 128),
    ("2*v5p:2x2x4", MOE, 96),
    ("h100:6", DENSE, 48),
]


@pytest.mark.parametrize(("on", "cfg", "sequences"), CASES)
def test_the_figures_of_the_search_are_those_of_the_plan(on, cfg, sequences):
    asked = request(cfg, on, sequences)
    report = search(asked, keep=6)
    assert len(report.best) >= 6
    for found in report.best:
        plan = plan_of(asked, found)
        answer = evaluate_train(plan, cfg, asked.piece)
        assert float(answer.estimate.expected) == pytest.approx(found.seconds, rel=1e-9)
        assert float(answer.memory.peak()) == pytest.approx(found.memory, rel=1e-9)


@pytest.mark.parametrize(("on", "cfg", "sequences"), CASES)
def test_the_report_counts_what_was_looked_at(on, cfg, sequences):
    report = search(request(cfg, on, sequences), keep=3)
    assert report.enumerated >= report.legal >= report.candidates > 0
    assert report.nearest is None
    assert 0 < report.seconds < 10
    seconds = [f.seconds for f in report.best]
    assert seconds == sorted(seconds)
    meshes = [tuple(f.mesh.items()) for f in report.best]
    assert len(set(meshes)) == len(meshes)


@pytest.mark.parametrize(
    "pins",
    [
        {"tensor": 2},
        {"fsdp": 4},
        {"stage": 2},
        {"context": 2, "fsdp": 2},
        {"data": 2},
        {"tensor": 1},
    ],
)
def test_pins_are_honoured(pins):
    report = search(request(on="v5e:4x4", sequences=32, pins=pins), keep=4)
    assert report.best
    for found in report.best:
        assert {axis: found.mesh.get(axis, 1) for axis in pins} == pins


def test_a_pinned_remat_is_the_only_one():
    report = search(request(remat=("block",)), keep=4)
    assert {f.remat for f in report.best} == {"block"}


def test_pinning_never_makes_a_plan_faster():
    free = search(request(on="v5e:4x4", sequences=32), keep=1).best[0].seconds
    for pins in ({"tensor": 4}, {"stage": 4}, {"fsdp": 16}):
        assert (
            search(request(on="v5e:4x4", sequences=32, pins=pins), keep=1).best[0].seconds >= free
        )


def test_batch_units_are_what_batches_must_divide_by():
    units = batch_units(request(pins={"fsdp": 4}))
    assert set(units) == {4 * 2**i for i in range(10)}


def test_all_policies_are_looked_at_unless_one_is_asked_for():
    one = search(request(remat=("block",)), keep=1)
    four = search(request(remat=REMAT_POLICIES), keep=1)
    assert four.enumerated == 4 * one.enumerated


def test_offload_needs_a_host_link():
    asked = request(on="v5e:2x2")
    blind = replace(asked.piece.chip, host_link_oneway=None)
    piece = replace(asked.piece, chip=blind)
    assert search(replace(asked, piece=piece), keep=1).best
    with pytest.raises(BadRequest, match="host_link_oneway"):
        search(replace(asked, piece=piece, remat=("offload",)), keep=1)
