"""The search finds what pricing every legal plan one by one finds, and says what it looked at."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import pytest
from tests.planner.closed import closed_form
from tests.planner.steps import dense, moe
from tests.searched import search
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice, parts
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.evaluate import TrainAnswer, plan_of
from shardwise.planner.search.loop import batch_units
from shardwise.planner.search.request import SEARCHED, STORAGES, TrainRequest
from shardwise.plans import MESH_AXES, TrainPlan, model_hash
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.layouts import STORAGE_AXES
from shardwise.plans.stacks import GATHERS, REDUCES
from shardwise.plans.train import CHOICES, PLACINGS, Structure
from shardwise.scheduling.pipeline import SCHEDULES

DENSE = dense(hidden_size=512, intermediate_size=1536, num_hidden_layers=4, vocab_size=4000)
MOE = moe()
PLAIN = {
    "storage_axes": (STORAGE_AXES,),
    "weight_gather": ("per_pass",),
    "gradient_reduce": ("per_microbatch",),
    "zero": (1,),
    "pipeline_schedule": ("1f1b",),
    "context_method": ("all_gather",),
}
"""One structure per remat policy."""
HELD = {"on": "v5e:4x4", "sequences": 32, "remat": ("block",)}
"""A quarter of the structures, for what is not about remat policies."""


def request(cfg=DENSE, on="v5e:2x2", sequences=16, **changes) -> TrainRequest:
    """A request; changes are values to search, by the name of the choice, other choices, or fields
    of the request."""
    piece = parse_slice(on)
    given = {
        "cfg": cfg,
        "model": cfg.name,
        "piece": piece,
        "sequences": sequences,
        "sequence_length": 256,
        "pins": {},
        "max_hbm_bytes": piece.chip.hbm_usable_bytes / piece.chip.jax_devices_per_chip,
    }
    searched = SEARCHED | {name: changes.pop(name) for name in SEARCHED if name in changes}
    structure = Structure(**{name: changes.pop(name) for name in CHOICES if name in changes})
    return TrainRequest(**(given | changes), searched=searched, structure=structure)


def brute(asked: TrainRequest) -> Iterator[TrainAnswer]:
    """Every plan of the axes that the search may use, priced alone by `closed_form`; those
    that it refuses are left out. Choices that make no difference are priced again and again."""
    for part, box in parts(asked.piece):
        for mesh in meshes(asked, prod(box) * part.count):
            counts = asked.microbatches or [2**i for i in range(10)]
            tried = asked.searched
            storages, methods = tried["storage_axes"], tried["context_method"]
            for choices in product(
                [n for n in counts if n >= mesh["stage"]],
                tried["remat"],
                PLACINGS,
                storages if mesh["context"] * mesh["expert"] > 1 else storages[:1],
                tried["weight_gather"],
                reduces(asked, mesh),
                methods if mesh["context"] > 1 else methods[:1],
                tried["zero"],
                schedules(asked) if mesh["stage"] > 1 else [("1f1b", 1)],
            ):
                try:
                    plan = plan_with(asked, mesh, part.count, box, *choices)
                    yield closed_form(plan, asked.cfg, asked.piece)
                except BadRequest:
                    continue


def reduces(asked: TrainRequest, mesh: dict[str, int]) -> tuple[str, ...]:
    """What was asked for, else what the software does."""
    asked_for = asked.searched["gradient_reduce"]
    if len(asked_for) == 1:
        return asked_for
    return (asked.structure.stack_row.piped_reduce if mesh["stage"] > 1 else "per_microbatch",)


def schedules(asked: TrainRequest) -> list[tuple[str, int]]:
    kinds = asked.searched["pipeline_schedule"]
    return [(kind, chunks) for kind in kinds for chunks in SCHEDULES[kind].chunks]


def meshes(asked: TrainRequest, devices: int) -> Iterator[dict[str, int]]:
    """Every way to write the devices as a mesh that keeps the scope of the search and its pins."""
    torus = len(asked.piece.shape) > 1
    degrees = [d for d in range(1, devices + 1) if devices % d == 0]
    for mesh in product(degrees, repeat=len(MESH_AXES)):
        named = dict(zip(MESH_AXES, mesh, strict=True))
        crossing = named["replica"] == 1 or (torus and asked.piece.count % named["replica"] == 0)
        pinned = all(named[axis] == degree for axis, degree in asked.pins.items())
        if prod(mesh) == devices and crossing and pinned:
            yield named


def plan_with(
    asked,
    mesh,
    slices,
    box,
    microbatches,
    remat,
    placing,
    storage,
    gather,
    reduce,
    method,
    zero,
    schedule,
) -> TrainPlan:
    whole, more = divmod(asked.cfg.layers, mesh["stage"])
    return TrainPlan(
        model=asked.model,
        model_hash=model_hash(asked.cfg),
        slice=str(asked.piece),
        mesh={a: d for a, d in mesh.items() if d > 1},
        box=box,
        slices=slices,
        placement=placing,
        global_batch_sequences=asked.sequences,
        sequence_length=asked.sequence_length,
        microbatches=microbatches,
        layers_per_stage=(*[whole + 1] * more, *[whole] * (mesh["stage"] - more)),
        remat=remat,
        storage_axes=storage,
        weight_gather=gather,
        gradient_reduce=reduce,
        context_method=method,
        zero=zero,
        pipeline_schedule=schedule[0],
        virtual_stages=schedule[1],
        stack=asked.structure.stack,
        dtypes=asked.structure.dtypes,
    )


def seconds(answer: TrainAnswer) -> float:
    return float(answer.estimate.expected)


def bytes_of(answer: TrainAnswer) -> float:
    return float(answer.memory.peak())


def random_space(seed: int) -> TrainRequest:
    """A small space: few devices, some of the choices, sometimes so little memory that half of the
    plans do not fit."""
    rng = random.Random(seed)
    cfg = rng.choice((DENSE, MOE))
    on = rng.choice(("v5e:2x2", "h100:4", "2*v5p:2x2x1", "2*h100:2", "h100:2"))
    schedule = rng.choice(("gpipe", "interleaved", "zb_h1", "zb_v", "dualpipe"))
    # With ZeRO-2 gradients are reduced after every microbatch.
    zero, reduce = rng.choice(((1,), (2,), (0, 1), (1, 2), (0,))), rng.choice(REDUCES)
    return request(
        cfg,
        on,
        rng.choice((8, 16)),
        stack=rng.choice(("xla", "megatron", "fsdp")),
        remat=(rng.choice(REMAT_POLICIES[:3]),),
        microbatches=rng.choice(((1, 4), (2, 4), (4,))),
        storage_axes=rng.choice((STORAGES, STORAGES[:1], STORAGES[1:])),
        weight_gather=(rng.choice(GATHERS),),
        gradient_reduce=REDUCES[:1] if zero == (2,) else (reduce,),
        context_method=tuple(rng.sample(CONTEXT_METHODS, rng.choice((1, 2)))),
        zero=zero,
        pipeline_schedule=("1f1b", schedule) if rng.random() < 0.7 else ("1f1b",),
        pins=rng.choice(({}, {}, {"stage": 2}, {"context": 2}, {"data": 2})),
    )


SEEDS = spread(range(20), quick=2, slow=3)


@pytest.mark.parametrize("seed", SEEDS)
def test_brute_force_agrees_on_random_spaces(seed):
    asked = random_space(seed)
    everything = sorted(brute(asked), key=seconds)
    if seed % 3 == 0:  # memory for the leaner half only
        usable = sorted(map(bytes_of, everything))[len(everything) // 2]
        asked = replace(asked, max_hbm_bytes=usable)
        everything = [a for a in everything if bytes_of(a) <= usable]
    best = everything[0].estimate
    for exhaustive in (False, True):
        found = search(asked, keep=3, exhaustive=exhaustive)
        assert found.best[0].seconds == pytest.approx(float(best.expected), rel=1e-9)
        assert found.best[0].memory <= asked.max_hbm_bytes
        again = closed_form(plan_of(asked, found.best[0]), asked.cfg, asked.piece)
        assert seconds(again) == pytest.approx(float(best.expected), rel=1e-9)
    # Everything that is legal on the whole slice was priced.
    whole = {
        (tuple(a.plan.mesh.items()), a.plan.microbatches)
        for a in everything
        if prod(a.plan.box) * a.plan.slices == asked.piece.chips
    }
    assert found.candidates == found.legal >= len(whole)


@cache
def plain(cfg, on, sequences, *remat):
    """A request of plain structures, and every plan of it."""
    asked = request(cfg, on, sequences, remat=remat, **PLAIN)
    return asked, tuple(brute(asked))


@pytest.mark.parametrize(
    ("cfg", "on", "sequences", "remat"),
    [
        (DENSE, "v5e:2x2", 16, ("none", "block")),
        (DENSE, "h100:4", 8, ("block",)),
        (MOE, "v5e:2x2", 8, ("none",)),
    ],
)
def test_brute_force_agrees(cfg, on, sequences, remat):
    asked, everything = plain(cfg, on, sequences, *remat)
    fitting = [a for a in everything if bytes_of(a) <= asked.max_hbm_bytes]
    best = min(map(seconds, fitting))
    found = search(asked, keep=3)
    assert found.best[0].seconds == pytest.approx(best, rel=1e-9)
    assert found.best[0].memory <= asked.max_hbm_bytes


def test_memory_limits_the_choice_as_brute_force_does():
    asked, everything = plain(DENSE, "v5e:2x2", 16, "none", "block")
    everything = sorted(everything, key=bytes_of)
    limit = bytes_of(everything[len(everything) // 3])
    best = min(seconds(a) for a in everything if bytes_of(a) <= limit)
    found = search(replace(asked, max_hbm_bytes=limit), keep=1).best[0]
    assert found.memory <= limit
    assert found.seconds == pytest.approx(best, rel=1e-9)
    # With less than the leanest plan needs, nothing fits and the leanest is the nearest miss.
    none = search(replace(asked, max_hbm_bytes=bytes_of(everything[0]) * 0.99), keep=1)
    assert none.best == ()
    assert none.nearest is not None
    assert none.nearest.memory == pytest.approx(bytes_of(everything[0]))


CASES = [
    ("v5p:4x4x4", DENSE, 256),
    ("v5e:4x8", DENSE, 64),
    ("4*h100:8", MOE, 128),
    ("2*v5p:2x2x4", MOE, 96),
    ("h100:6", DENSE, 48),
]


@pytest.mark.parametrize("exhaustive", [False, True])
@pytest.mark.parametrize(("on", "cfg", "sequences"), spread(CASES, quick=[2, 4], slow=3, rows=True))
def test_the_figures_of_the_search_are_those_of_the_plan(on, cfg, sequences, exhaustive):
    asked = request(cfg, on, sequences)
    report = search(asked, keep=12, exhaustive=exhaustive)
    assert len(report.best) >= 12
    for found in report.best:
        answer = closed_form(plan_of(asked, found), cfg, asked.piece)
        assert seconds(answer) == pytest.approx(found.seconds, rel=1e-9)
        assert bytes_of(answer) == pytest.approx(found.memory, rel=1e-9)


@pytest.mark.parametrize(("on", "cfg", "sequences"), CASES[:4])
def test_floors_leave_out_nothing_that_belongs_to_the_answer(on, cfg, sequences):
    asked = request(cfg, on, sequences)
    some, all_ = search(asked, keep=12), search(asked, keep=12, exhaustive=True)
    assert all_.candidates == all_.legal == some.legal
    assert some.candidates < all_.candidates
    for mine, theirs in zip(some.best, all_.best, strict=True):
        assert mine.seconds == pytest.approx(theirs.seconds, rel=1e-12)


@pytest.mark.parametrize(("on", "cfg", "sequences"), CASES)
def test_the_report_counts_what_was_looked_at(on, cfg, sequences):
    report = search(request(cfg, on, sequences), keep=12)
    assert report.enumerated >= report.legal >= report.candidates > 0
    assert report.nearest is None
    assert report.seconds > 0
    ranks = [f.rank for f in report.best]
    assert ranks == sorted(ranks)
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
    report = search(request(**HELD, pins=pins), keep=4)
    assert report.best
    for found in report.best:
        assert {axis: found.mesh.get(axis, 1) for axis in pins} == pins


def test_a_pinned_remat_is_the_only_one():
    report = search(request(remat=("block",)), keep=4)
    assert {f.structure.remat for f in report.best} == {"block"}


@pytest.mark.parametrize(
    ("choice", "value", "pins"),
    [
        ("zero", (2,), {"data": 2}),
        ("pipeline_schedule", ("zb_h1",), {"stage": 2}),
        ("pipeline_schedule", ("interleaved",), {"stage": 2}),
        ("context_method", ("ulysses",), {"context": 2}),
        ("storage_axes", (("fsdp",),), {"context": 2}),
        ("weight_gather", ("per_microbatch",), {"fsdp": 2}),
    ],
)
def test_a_choice_that_is_asked_for_is_the_only_one(choice, value, pins):
    report = search(request(**HELD, pins=pins, **{choice: value}), keep=4)
    assert report.best
    assert {getattr(f.structure, choice) for f in report.best} == set(value)


def test_pinning_never_makes_a_plan_faster():
    free = search(request(**HELD), keep=1).best[0].seconds
    for pins in ({"tensor": 4}, {"stage": 4}, {"fsdp": 16}):
        pinned = search(request(**HELD, pins=pins), keep=1)
        assert pinned.best[0].seconds >= free * (1 - 1e-12)


def chips_of(found) -> int:
    return prod(found.box) * found.slices


def test_cost_pays_for_the_chips_in_use_only():
    asked = request(remat=("block",))
    fast = search(asked, keep=1).best[0]
    cheap = search(replace(asked, objective="cost"), keep=1, exhaustive=True).best[0]
    assert cheap.rank == pytest.approx(chips_of(cheap) * cheap.seconds)
    assert cheap.rank <= chips_of(fast) * fast.seconds * (1 + 1e-12)
    assert chips_of(cheap) < chips_of(fast)  # communication makes many chips cost more per step
    pruned = search(replace(asked, objective="cost"), keep=1).best[0]
    assert pruned.rank == pytest.approx(cheap.rank, rel=1e-12)


def test_chips_is_the_smallest_part_on_which_a_plan_fits():
    asked = request(**HELD, objective="chips")
    assert chips_of(search(asked, keep=1).best[0]) == 1
    # With less memory a single chip holds no plan any more.
    alone = search(replace(asked, piece=parse_slice("v5e:1x1")), keep=1, exhaustive=True).best
    leanest = search(replace(asked, piece=parse_slice("v5e:1x1"), max_hbm_bytes=1.0), keep=1)
    assert alone
    assert leanest.nearest is not None
    tight = replace(asked, max_hbm_bytes=leanest.nearest.memory * 0.9)
    few = search(tight, keep=1).best[0]
    assert 1 < chips_of(few) < 16
    fastest = min(
        (
            f.seconds
            for f in search(replace(tight, objective="time"), keep=40, exhaustive=True).best
            if chips_of(f) == chips_of(few)
        ),
        default=few.seconds,
    )
    assert few.seconds <= fastest * (1 + 1e-12)


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
        search(replace(asked, piece=piece, searched={**SEARCHED, "remat": ("offload",)}), keep=1)


def test_progress_is_told_while_a_part_is_looked_at():
    seen = []
    search(request(**PLAIN), 3, lambda done, of: seen.append((done, of)))
    of = len(parts(parse_slice("v5e:2x2")))
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, of), (of, of))
