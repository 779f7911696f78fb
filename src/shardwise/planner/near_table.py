"""Plans near a given one that differ in several choices at once: mesh, sequences of a microbatch,
rematerialisation, sequence parallelism and pipeline schedule, every combination priced on arrays.

Of each set of choices `near_in_tables` yields the few plans that are worth to be priced alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import inf
from operator import or_

import numpy as np

from shardwise.models.remat import REMAT_POLICIES, RematPolicy
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.search.legality import batch_shards
from shardwise.planner.search.request import SEARCHED, TrainRequest
from shardwise.planner.search.space import divisors
from shardwise.planner.search.table import PlanTable, plan_tables
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.plans.software import SoftwareRow, candidates_of_plan
from shardwise.plans.software.torchtitan import selective
from shardwise.plans.train import Structure, spread

_Kept = tuple[tuple[RematPolicy, ...], dict]
"""Policies, and kinds of activations that are kept otherwise."""
TABLED = ("mesh", "microbatches", "remat", "sequence_parallel", "pipeline_schedule")
"""Choices of which every combination is priced."""
_MOST = 24
"""Plans of the tables that are priced alone, at most (ours: each takes a fiftieth of a second)."""
_MESHES, _OTHERS, _STRATEGIES = 4, 2, 8
"""Of a set of choices those that are priced alone: the fastest, each with a mesh of its own; of
those that change none; and those that need less, each on other axes."""
WORTH = 1.05
"""What another choice to change has to be worth (ours)."""
_BY_HAND = 1.02
"""What uneven chunks of layers have to be worth: most programs want each written out (ours)."""
_TOO_LARGE = 1.5
"""Bytes by which a faster plan may exceed the given ones: another choice may spare them (ours)."""
_LEANER = 0.9
"""The share of the given bytes from which on a slower plan is worth a look (ours)."""
_MOST_ROUNDS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableRows:
    """All rows of all tables: `table` and `at` say where each stands, `code` which of the choices
    it changes as bits, `uneven` whether chunks of layers are not all of one size."""

    table: np.ndarray
    at: np.ndarray
    code: np.ndarray
    uneven: np.ndarray
    seconds: np.ndarray
    memory: np.ndarray


def near_in_tables(
    answer: TrainAnswer, most_bytes: float, row: SoftwareRow | None
) -> Iterator[tuple[tuple[str, ...], TrainPlan]]:
    """Plans that change some of `TABLED`, with what they change: of each set of choices the fastest
    of at most so many bytes, and those that need less; where none fits, the leanest."""
    outer = answer.plan.degree("replica") if len(answer.piece.shape) == 1 else 1
    answer = replace(answer, plan=_folded(answer.plan, outer))
    tables = [t for request in _requests(answer, row) for t in plan_tables(request)]
    rows = _rows_of(tables, answer.plan, answer.cfg.layers)
    if rows is None:
        return
    room = most_bytes / answer.piece.chip.jax_devices_per_chip
    for i in _chosen(rows, tables, answer, room):
        names = tuple(n for bit, n in enumerate(TABLED) if rows.code[i] >> bit & 1)
        near = _plan_at(tables[rows.table[i]], int(rows.at[i]), answer.plan, answer.cfg.layers)
        yield names, _folded(near, outer, back=True)


def _folded(plan: TrainPlan, outer: int, *, back: bool = False) -> TrainPlan:
    """The plan with its `outer` copies across slices as copies of the axis `data`, which is the
    same thing behind switches and the axis that is searched there; or `back` where they divide."""
    data = plan.degree("data") // outer if back else plan.degree("data") * outer
    if outer == 1 or (back and plan.degree("data") % outer):
        return plan
    degrees = {axis: plan.degree(axis) for axis in MESH_AXES}
    degrees |= {"replica": outer if back else 1, "data": data}
    return replace(plan, mesh={axis: degree for axis, degree in degrees.items() if degree > 1})


def _requests(answer: TrainAnswer, row: SoftwareRow | None) -> Iterator[TrainRequest]:
    """One for every way to keep activations, and for activations cut over `tensor` or not."""
    plan, cfg = answer.plan, answer.cfg
    if row and row.obstacles(candidates_of_plan(plan, cfg, answer.piece)):
        row = None  # what it cannot run of the given plan, it cannot run of any near it
    words = row.words.get("pipeline_schedule") if row else None
    schedules = SEARCHED["pipeline_schedule"]
    schedules = tuple(s for s in schedules if words is None or s in words)
    kept = [one for one in _kept_by(plan, cfg.has_experts) if _said(one, answer, row)]
    cuts = (True, False) if answer.piece.chips > 1 else (plan.sequence_parallel,)
    for (policies, kinds), cut in product(kept, cuts):
        structure = Structure(**{**plan.choices, "remat_kinds": kinds, "sequence_parallel": cut})
        searched = {name: (getattr(plan, name),) for name in SEARCHED}
        yield TrainRequest(
            cfg=cfg,
            model=plan.model,
            piece=replace(answer.piece, count=plan.slices),
            sequences=plan.global_batch_sequences,
            sequence_length=plan.sequence_length,
            pins={"replica": plan.degree("replica")},
            max_hbm_bytes=inf,
            searched={**searched, "remat": policies, "pipeline_schedule": schedules},
            structure=structure,
            microbatches=_rounds(plan),
            software=row,
            chips=plan.chips,
            part=(plan.slices, plan.box),
            placings=(plan.placement,),
        )


def _said(kept: _Kept, answer: TrainAnswer, row: SoftwareRow | None) -> bool:
    """Whether the program has words for a way to keep activations; of whole policies the search
    asks that."""
    (policy, *_), kinds = kept
    plan = replace(answer.plan, remat=policy, remat_kinds=kinds)
    candidates = candidates_of_plan(plan, answer.cfg, answer.piece)
    return not kinds or row is None or not row.obstacles(candidates)


def _rounds(plan: TrainPlan) -> tuple[int, ...]:
    most = max(_MOST_ROUNDS, plan.microbatches)
    return tuple(n for n in divisors(plan.global_batch_sequences) if n <= most)


def _kept_by(plan: TrainPlan, experts: bool) -> Iterator[_Kept]:
    """Whole policies; the given one; attention alone computed again (Megatron's selective); a few
    kinds kept of each block (MaxText's custom); and what TorchTitan's selective keeps."""
    yield REMAT_POLICIES, {}
    if plan.remat_kinds:
        yield (plan.remat,), dict(plan.remat_kinds)
    yield ("none",), {"attention": "recompute"}
    for kept in (*_KEPT, selective(experts=experts)):
        yield ("block",), dict.fromkeys(kept, "keep")


_KEPT = (
    *(("attention",), ("qkv",), ("qkv", "attention_out"), ("qkv", "attention", "attention_out")),
    *(("mlp_in",), ("qkv", "mlp_in")),
)
"""Kinds of activations that blocks keep which else are computed again, from few bytes to many."""


def _rows_of(tables: list[PlanTable], plan: TrainPlan, layers: int) -> _TableRows | None:
    """What stands in the tables but for the plan itself and what is there twice."""
    if not tables:
        return None
    sizes = [len(t.seconds) for t in tables]
    rows = _TableRows(
        table=np.repeat(np.arange(len(tables)), sizes),
        at=np.concatenate([np.arange(n) for n in sizes]),
        code=np.concatenate([_code(t, plan) for t in tables]),
        uneven=np.concatenate([_uneven(t, layers) for t in tables]),
        seconds=np.concatenate([t.seconds for t in tables]),
        memory=np.concatenate([t.memory for t in tables]),
    )
    return _taken(rows, rows.code > 0)


def _uneven(table: PlanTable, layers: int) -> np.ndarray:
    return layers % (table.columns.degrees["stage"] * table.structure.virtual_stages) > 0


def _taken(rows: _TableRows, mask: np.ndarray) -> _TableRows:
    return _TableRows(**{name: getattr(rows, name)[mask] for name in _TableRows.__slots__})


def _code(table: PlanTable, plan: TrainPlan) -> np.ndarray:
    """The choices that each row changes, as bits in the order of `TABLED`; 0 where another row says
    the same plan."""
    degrees, made = table.columns.degrees, table.structure
    each = plan.global_batch_sequences // (batch_shards(degrees) * table.columns.microbatches)
    piped = (degrees["stage"] > 1) & (plan.degree("stage") > 1)
    schedules = (
        (p.pipeline_schedule for p in (made, plan)),
        (p.virtual_stages for p in (made, plan)),
    )
    cut = made.sequence_parallel != plan.sequence_parallel
    changed = (
        reduce(or_, (degrees[axis] != plan.degree(axis) for axis in MESH_AXES)),
        each != plan.global_batch_sequences // (plan.batch_shards * plan.microbatches),
        (made.remat, made.remat_kinds) != (plan.remat, dict(plan.remat_kinds)),
        cut & (degrees["tensor"] > 1),
        piped & any(len(set(pair)) > 1 for pair in schedules),
    )
    code = sum(np.asarray(one, np.int64) << bit for bit, one in enumerate(changed))
    return np.where(cut & (degrees["tensor"] == 1), 0, code)


def _chosen(
    rows: _TableRows, tables: list[PlanTable], answer: TrainAnswer, room: float
) -> list[int]:
    """Rows that are priced alone, the best first."""
    fits = rows.memory <= room
    if not fits.any():
        return np.argsort(rows.memory)[: _MOST // 4].tolist()
    peak = float(answer.memory.peak())
    changes = np.array([bin(code).count("1") for code in range(2 ** len(TABLED))])[rows.code]
    score = rows.seconds * WORTH**changes * np.where(rows.uneven, _BY_HAND, 1.0)
    before = answer.step_seconds.expected
    better = fits & (peak > room or (score < WORTH * before) | (changes == 1))
    found: dict[int, float] = {}
    for code in np.unique(rows.code[better]).tolist():
        most = _MESHES if code & 1 else _OTHERS
        mine = np.flatnonzero(better & (rows.code == code))
        for i in _distinct(mine[np.argsort(score[mine])], rows, tables, most):
            found[i] = float(score[i])
    leaner = fits & (rows.memory < _LEANER * peak) & (rows.seconds > before) & (changes == 1)
    price = (rows.seconds - before) / np.maximum(peak - rows.memory, 1.0)
    for i in _leaner(rows, tables, leaner, price):
        found.setdefault(i, float(score[i]))
    large = ~fits & (rows.memory < _TOO_LARGE * room) & (score < min([*found.values(), before]))
    most = np.flatnonzero(large)
    several = most[np.argsort(score[most])][:_OTHERS].tolist()
    return [*sorted(found, key=lambda i: found[i])[:_MOST], *several]


def _leaner(
    rows: _TableRows, tables: list[PlanTable], leaner: np.ndarray, price: np.ndarray
) -> Iterator[int]:
    """Of each choice those that spare memory for the fewest seconds a byte."""
    for code in np.unique(rows.code[leaner]).tolist():
        mine = np.flatnonzero(leaner & (rows.code == code))
        order, most = mine[np.argsort(price[mine])], _STRATEGIES if code & 1 else 1
        yield from _distinct(order, rows, tables, most, axes=True)


def _distinct(
    order: np.ndarray, rows: _TableRows, tables: list[PlanTable], most: int, axes: bool = False
) -> list[int]:
    """The first rows of an order, each on a mesh of its own where they change that, or of other
    `axes`."""
    known: set[tuple] = set()
    found: list[int] = []
    for i in order.tolist():
        degrees = tables[rows.table[i]].columns.degrees.values()
        mesh = tuple(int(d[rows.at[i]]) for d in degrees)
        mesh = tuple(d > 1 for d in mesh) if axes else mesh
        if rows.code[i] & 1 and mesh in known:
            continue
        known.add(mesh)
        found.append(i)
        if len(found) == most:
            break
    return found


def _plan_at(table: PlanTable, at: int, plan: TrainPlan, layers: int) -> TrainPlan:
    """The plan of a row; stages of as many layers as the given one has where there are as many."""
    columns, made = table.columns, table.structure
    degrees = {axis: int(columns.degrees[axis][at]) for axis in MESH_AXES}
    stages = degrees["stage"]
    spans = plan.layers_per_stage if stages == plan.degree("stage") else spread(layers, stages)
    names = ("remat", "remat_kinds", "sequence_parallel", "pipeline_schedule", "virtual_stages")
    return replace(
        plan,
        mesh={axis: d for axis, d in degrees.items() if d > 1},
        microbatches=int(columns.microbatches[at]),
        layers_per_stage=spans,
        **{name: getattr(made, name) for name in names},
    )
