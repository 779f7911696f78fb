"""The programs of the table, compiled once: kept by plan, by the sources that make a program of a
plan, and by the compilers' versions, so that a run goes on where the last one stopped."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import shardwise
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import Priced, price_plan
from shardwise.commands.program.compiling import (
    PLAN_BUILDER,
    PlanProgram,
    PredictedProgram,
    predicted_of,
    program_of,
)
from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import device_coordinates
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import plan_dict
from shardwise.plans.servers import JAX
from shardwise.plans.software import SOFTWARE
from shardwise.profiler.ahead import CompileCache, CompiledProgram, Limits, compile_ahead, target_of
from shardwise.profiler.ahead.cache import key_of, read_entry, write_entry
from shardwise.profiler.ahead.compile import compiled_of
from shardwise.roofline.engines import IDEAL_ENGINE

MAKERS = (
    "models/parameters.py",
    "models/numerics*.py",
    "models/runnable.py",
    "plans/layouts.py",
    "plans/paged_kernel.py",
    "plans/served_steps.py",
    "plans/software/xla_*.py",
    "plans/data/software/xla_*.toml",
    "runtime/*.py",
    "runtime/attention/*.py",
    "runtime/collective_matmul.py",
    "runtime/engine/model_step.py",
    "runtime/engine/sampling.py",
    "runtime/engine/server_layout.py",
    "runtime/engine/step_shapes.py",
    "runtime/parallel/*.py",
    "runtime/programs/*.py",
    "runtime/trainer/optimizer.py",
)
SECONDS = 900.0
MOST_BUFFERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan, priced, with its compiled program."""

    plan: TrainPlan | ServePlan
    priced: Priced
    program: PlanProgram


def compiled_case(
    plan: TrainPlan | ServePlan,
    phase: str,
    hardware: Hardware,
    root: Path,
    options: Mapping[str, Any] | None = None,
) -> Case:
    """A plan's program of a phase: train, decode or prefill; at the compiler's own effort, where
    `options` of the compiler do not say otherwise."""
    priced = price_plan(priced_as(plan), hardware)
    found = _compiled(plan, phase, priced, CompileCache(root=root, limit=8 * 2**30), options or {})
    return _case(plan, phase, priced, found)


def priced_as(plan: TrainPlan | ServePlan) -> TrainPlan | ServePlan:
    """The plan as its program is priced today: lists of plans are older than some stacks."""
    chip = parse_slice(plan.slice).chip
    if isinstance(plan, ServePlan):
        return replace(plan, engine=JAX.engine_on(chip))
    if plan.software in SOFTWARE:
        return replace(plan, stack=SOFTWARE[plan.software].stack_on(chip))
    return plan


def predicted_seconds(plan: TrainPlan | ServePlan, phase: str) -> dict[str, float]:
    """Expected seconds of a step by the prices of our own software, and a server's at the chip's
    own rates, too."""
    plans = {"predicted": priced_as(plan)}
    if isinstance(plan, ServePlan):
        plans["roofline"] = replace(plan, engine=IDEAL_ENGINE.name)
    said = {name: _said(p, phase) for name, p in plans.items()}
    return {name: one.seconds.expected for name, one in said.items()}


def predicted_memory(
    plan: TrainPlan | ServePlan, phase: str, compiled: float, usable: float
) -> dict[str, Any]:
    """The peak bytes predicted beside those compiled and usable."""
    peak = _said(priced_as(plan), phase).peak_bytes
    return {"predicted": peak, "error": peak / compiled - 1, "fits_predicted": peak <= usable}


def _said(plan: TrainPlan | ServePlan, phase: str) -> PredictedProgram:
    return predicted_of(price_plan(plan, Hardware()), phase)


def kept_case(
    plan: TrainPlan | ServePlan,
    phase: str,
    hardware: Hardware,
    root: Path,
    options: Mapping[str, Any] | None = None,
    *,
    key: str = "",
) -> Case | None:
    """The same where the folder has the program, of these sources or of the `key` that a table
    names; else None, and nothing is compiled."""
    cache = CompileCache(root=root)
    found = _kept(plan, phase, cache, options or {})
    if found is None and key and (held := cache.load(key)):
        found = compiled_of(key, *held, cached=True)
    return _case(plan, phase, price_plan(priced_as(plan), hardware), found) if found else None


def _case(plan: TrainPlan | ServePlan, phase: str, priced: Priced, found: CompiledProgram) -> Case:
    program = program_of(phase, found, priced.answer.piece, predicted_of(priced, phase))
    return Case(plan=plan, priced=priced, program=program)


def dump(case: Case, root: Path, folder: Path) -> None:
    """The entry of a case as a folder for tests, with its plan and its largest buffers."""
    folder.mkdir(parents=True, exist_ok=True)
    record, hlo = read_entry(CompileCache(root=root).entry(case.program.compiled.key))
    write_entry(folder, {**record, "buffers": record["buffers"][:MOST_BUFFERS]}, hlo)
    (folder / "plan.json").write_text(json.dumps(plan_dict(case.plan), indent=1), encoding="utf-8")


def _compiled(
    plan: TrainPlan | ServePlan,
    phase: str,
    priced: Priced,
    cache: CompileCache,
    options: Mapping[str, Any],
) -> CompiledProgram:
    if kept := _kept(plan, phase, cache, options):
        return kept
    found = compile_ahead(
        target_of(priced.answer.piece, device_coordinates(priced.answer.placement)),
        PLAN_BUILDER,
        {"plan": plan_dict(plan), "phase": phase},
        options=options,
        limits=Limits(seconds=SECONDS, memory_bytes=6 * 2**30, cache=cache),
    )
    cache.remember(_request(plan, phase, options), found.key)
    return found


def _kept(
    plan: TrainPlan | ServePlan, phase: str, cache: CompileCache, options: Mapping[str, Any]
) -> CompiledProgram | None:
    known = cache.follow(_request(plan, phase, options))
    held = cache.load(known) if known else None
    return compiled_of(known, *held, cached=True) if known and held else None


def _request(plan: TrainPlan | ServePlan, phase: str, options: Mapping[str, Any]) -> str:
    return key_of("table", plan_dict(plan), phase, options, sources())


@lru_cache
def sources(makers: tuple[str, ...] = MAKERS) -> str:
    """A hash of what makes a program of a plan; the plan itself has a hash of the model's rows."""
    digest, root = hashlib.sha256(), Path(shardwise.__file__).parent
    for path in (path for pattern in makers for path in sorted(root.glob(pattern))):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()
