"""Plans near a given one: the same job on the same chips in the same dtypes, one choice otherwise.

Each is what a person would try by hand, and what the plan's program runs. `near_plans` makes them,
`priced_near` prices them; where one change is not enough to fit, it changes one more.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.training import TrainAnswer, evaluate_train
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.plans.laws import BATCH_AXES
from shardwise.plans.optimizers import optimizer_row
from shardwise.plans.software import SoftwareRow, candidates_of_plan, matters
from shardwise.plans.software.torchtitan import selective
from shardwise.plans.stacks import stack_row
from shardwise.plans.train import CHOICES, spread
from shardwise.scheduling.pipeline import PIPELINE_KINDS, PLAIN, schedule_row

Changed = Iterator[Mapping[str, Any]]
"""Fields of a plan with other values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearPlan:
    """A priced plan that differs from the given one in its `choices`."""

    choices: tuple[str, ...]
    answer: TrainAnswer


def priced_near(answer: TrainAnswer, most_bytes: float, row: SoftwareRow | None) -> list[NearPlan]:
    """The plans near a priced one that a program runs (`row`, None for all). Then those near the
    fastest that need more than `most_bytes`, and, where none of them all needs less, those near the
    leanest."""
    known, peak = [answer.plan], answer.peak_bytes_per_chip
    found = list(_priced((), answer, known, row))
    large = [near for near in found if near.answer.peak_bytes_per_chip > most_bytes]
    if len(large) == len(found):
        large.sort(key=lambda near: near.answer.peak_bytes_per_chip)
    else:
        before = answer.step_seconds.expected
        large = [near for near in large if near.answer.step_seconds.expected < _FASTER * before]
        large.sort(key=lambda near: near.answer.step_seconds.expected)
    for near in large[: _AGAIN if peak <= most_bytes else 2 * _AGAIN]:
        found += _priced(near.choices, near.answer, known, row)
    return found


_AGAIN = 2
"""Plans that do not fit of which another choice is changed, and twice as many where the given one
does not (ours: each takes seconds)."""
_FASTER = 0.98
"""A plan that does not fit is worth another change from this share of the given step on (ours)."""


def _priced(
    before: tuple[str, ...], answer: TrainAnswer, known: list[TrainPlan], row: SoftwareRow | None
) -> Iterator[NearPlan]:
    for choice, plan in near_plans(answer.plan, answer.cfg, row):
        if choice in before or plan in known or not _runs(plan, answer, row):
            continue
        known.append(plan)
        with suppress(BadRequest):  # what does not divide or is not placed
            priced = evaluate_train(plan, answer.cfg, answer.piece)
            yield NearPlan(choices=(*before, choice), answer=priced)


def _runs(plan: TrainPlan, answer: TrainAnswer, row: SoftwareRow | None) -> bool:
    """Whether a program has no obstacle to the plan that it does not have to the given one."""
    old, new = (candidates_of_plan(p, answer.cfg, answer.piece) for p in (answer.plan, plan))
    changed = [name for name in CHOICES if old.value(name) != new.value(name)]
    if (
        changed
        and not any(matters(name, new).any() for name in changed)
        and old.degrees == new.degrees
    ):
        return False  # it is the same plan
    return row is None or {o.field for o in row.obstacles(new)} <= {
        o.field for o in row.obstacles(old)
    }


def near_plans(
    plan: TrainPlan, cfg: ModelConfig, row: SoftwareRow | None
) -> Iterator[tuple[str, TrainPlan]]:
    """Every plan that differs in one choice, with the choice; one that is no plan is left out."""
    words = row.words if row else {}
    for choice, changes in _CHANGES.items():
        for changed in changes(plan, cfg):
            schedule = changed.get("pipeline_schedule", PLAIN)
            if schedule not in (PLAIN, *words.get("pipeline_schedule", PIPELINE_KINDS)):
                continue  # many, of which each would be priced
            with suppress(BadRequest):
                yield choice, replace(plan, **changed)


_FACTORS = (2, 4, 8)


def _meshes(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    """A part of one axis's devices goes to another axis; a microbatch stays as large."""
    for less in (axis for axis in _MOVED if plan.degree(axis) > 1):
        for more in _MOVED:
            if more == less or (more == "expert" and not cfg.has_experts):
                continue
            for factor in (f for f in _FACTORS if plan.degree(less) % f == 0):
                degrees = dict(plan.mesh)
                degrees[less] = plan.degree(less) // factor
                degrees[more] = plan.degree(more) * factor
                yield from _remeshed(plan, cfg, degrees)


_MOVED = tuple(axis for axis in MESH_AXES if axis != "replica")
"""Axes that a change may take from and give to; `replica` goes over slices, which stay."""


def _remeshed(plan: TrainPlan, cfg: ModelConfig, degrees: Mapping[str, int]) -> Changed:
    mesh = {axis: degrees[axis] for axis in MESH_AXES if degrees.get(axis, 1) > 1}
    stages, shards = mesh.get("stage", 1), prod(mesh.get(axis, 1) for axis in BATCH_AXES)
    rounds = plan.global_batch_sequences // (shards * _each(plan)) or 1
    changed: dict[str, Any] = {"mesh": mesh, "microbatches": rounds}
    if stages == plan.degree("stage"):
        yield changed
        return
    changed["layers_per_stage"] = spread(cfg.layers, stages)
    if stages == 1:
        yield {**changed, "pipeline_schedule": PLAIN, "virtual_stages": 1}
    elif plan.degree("stage") > 1:
        yield changed
    else:
        for kind, chunks in _schedules():
            yield {**changed, "pipeline_schedule": kind, "virtual_stages": chunks}


def _each(plan: TrainPlan) -> int:
    """Sequences of a microbatch on a device."""
    return plan.global_batch_sequences // (plan.batch_shards * plan.microbatches)


def _microbatches(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    for factor in _FACTORS:
        yield {"microbatches": plan.microbatches * factor}
        if plan.microbatches % factor == 0:
            yield {"microbatches": plan.microbatches // factor}


def _remats(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    """Whole policies; attention alone computed again (Megatron's selective); a few kinds kept of
    each block (MaxText's custom); and what TorchTitan's selective keeps."""
    for policy in REMAT_POLICIES:
        yield {"remat": policy, "remat_kinds": {}}
    yield {"remat": "none", "remat_kinds": {"attention": "recompute"}}
    for kept in (*_KEPT, selective(experts=cfg.has_experts)):
        yield {"remat": "block", "remat_kinds": dict.fromkeys(kept, "keep")}


_KEPT = (
    *(("attention",), ("qkv",), ("qkv", "attention_out"), ("qkv", "attention", "attention_out")),
    *(("mlp_in",), ("qkv", "mlp_in")),
)
"""Kinds of activations that blocks keep which else are computed again, from few bytes to many."""


def _schedules() -> Iterator[tuple[str, int]]:
    """Every schedule with every number of chunks."""
    for kind in (PLAIN, *PIPELINE_KINDS):
        for chunks in schedule_row(kind).chunks:
            yield kind, chunks


def _pipelines(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    if plan.degree("stage") > 1:
        for kind, chunks in _schedules():
            yield {"pipeline_schedule": kind, "virtual_stages": chunks}


def _overlaps(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    """Transfers that wait, one after the other, and all that the program can hide."""
    able = stack_row(plan.stack).overlap
    now = able if plan.overlap is None else frozenset(plan.overlap)
    for name in sorted(able - now):
        yield {"overlap": tuple(sorted({*now, name}))}
    if len(able - now) > 1:
        yield {"overlap": None}


def _of(name: str, *values: Any) -> Callable[[TrainPlan, ModelConfig], Changed]:
    return lambda plan, cfg: ({name: value} for value in values if value != getattr(plan, name))


def _eight_bits(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    """The optimizer with narrower moments."""
    if narrow := optimizer_row(plan.optimizer).narrow:
        yield {"optimizer": narrow}


def _chunked(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    for chunks in (1, 4, 8):
        if chunks != plan.logit_chunks:
            yield {"logit_chunks": chunks}


def _dispatchers(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    if cfg.has_experts:
        for sender in ("alltoall", "deepep"):
            yield {"dispatcher": sender}


_CHANGES: Mapping[str, Callable[[TrainPlan, ModelConfig], Changed]] = {
    "mesh": _meshes,
    "microbatches": _microbatches,
    "remat": _remats,
    "zero": _of("zero", 0, 1, 2),
    "sequence_parallel": _of("sequence_parallel", True, False),
    "pipeline_schedule": _pipelines,
    "overlap": _overlaps,
    "weight_gather": _of("weight_gather", "per_pass", "per_microbatch"),
    "context_method": _of("context_method", "ring", "all_gather", "ulysses"),
    "compiled": _of("compiled", True),
    "expert_over_tensor": _of("expert_over_tensor", True, False),
    "dispatcher": _dispatchers,
    "fused_loss": _of("fused_loss", True),
    "optimizer": _eight_bits,
    "offload_optimizer": _of("offload_optimizer", True, False),
    "logit_chunks": _chunked,
}
"""Of each choice, how else it could be."""
