"""What a plan predicts of a step beside what its compiled step has: collectives, and bytes of the
state.

The plan's side comes from the planner's Work and memory, the other from the runtime's own
`train_step`, compiled in a child process (`job.py`) for a TPU slice that need not be here; of a
pipeline from the passes of its last rank, which holds the head.
"""

import os
import pickle
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.models import ModelConfig
from shardwise.planner.evaluate import plan_shape
from shardwise.planner.price.memory import stage_memory
from shardwise.planner.step.work import train_work
from shardwise.plans import TrainPlan
from shardwise.profiler import need_libtpu, run_function
from shardwise.profiler.collectives.lines import (
    Line,
    activation_dtype,
    lines_of,
    read_lines,
)

SCRIPTS = Path(__file__).resolve().parents[1]
"""Where the child finds `job.py`."""
SECONDS_EACH = 120.0
STATE = ("params", "optimizer")
"""Parts of the runtime's state, and kinds of memory of the planner."""


def planned_lines(plan: TrainPlan, cfg: ModelConfig) -> tuple[Line, ...]:
    """The collectives of one step of the plan, on the busiest device."""
    return lines_of(train_work(cfg, plan_shape(plan, cfg)), plan)


def planned_state(plan: TrainPlan, cfg: ModelConfig, rank: int = 0) -> dict[str, float]:
    """Bytes of parameters and of the optimizer's state on one device of a pipeline's rank, as the
    plan has them."""
    stages = stage_memory(cfg, plan_shape(plan, cfg), plan.layers_per_stage)
    _, kinds = stages[rank].points[-1]
    return {part: float(kinds[part]) for part in STATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """What one compiled step has: its collectives, the bytes of its state on one device, and those
    of buffers and counters beside it."""

    lines: tuple[Line, ...]
    state: Mapping[str, float]
    beside: Mapping[str, float]


def compiled_steps(
    cases: Sequence[tuple[TrainPlan, ModelConfig]], topology: str = "v5e:2x4"
) -> tuple[CompiledStep, ...]:
    """Every plan's `train_step`, compiled in one child for a slice by libtpu's name.

    Raises MissingPart without JAX or libtpu, ShardwiseError where a compile fails, BadRequest (in
    the child) for a plan that the runtime does not run.
    """
    pairs = zip(cases, compiled_texts(cases, topology), strict=True)
    return tuple(read_step(answer, plan) for (plan, _), answer in pairs)


def compiled_texts(
    cases: Sequence[tuple[TrainPlan, ModelConfig]], topology: str
) -> list[dict[str, Any]]:
    """What `compiled_steps` reads: the answers of `job.compile_plans`, plain values."""
    need_libtpu()
    packed = [b64encode(pickle.dumps(case)).decode() for case in cases]
    return run_function(
        "planned_steps.job:compile_plans",
        {"cases": packed, "topology": topology},
        devices=1,
        environment={"PYTHONPATH": f"{SCRIPTS}:{os.environ.get('PYTHONPATH', '')}"},
        seconds=SECONDS_EACH * len(cases),
    )


def read_step(answer: Mapping[str, Any], plan: TrainPlan) -> CompiledStep:
    """One of `compiled_texts`, with its programs read."""
    return CompiledStep(
        lines=_lines(answer, plan),
        state={part: held[0] for part, held in answer["held"].items()},
        beside={part: held[1] for part, held in answer["held"].items()},
    )


def _lines(answer: Mapping[str, Any], plan: TrainPlan) -> tuple[Line, ...]:
    """The collectives of all programs of a step, and what is moved between stages."""
    found = [
        replace(line, count=line.count * times)
        for text, times in answer["hlo"]
        for line in read_lines(text, plan)
    ]
    size, times = answer["moved"]
    if times:
        dtype = activation_dtype(plan)
        sent = Line(
            kind="permute", axes=("stage",), bytes=size, count=times, name="moved", dtype=dtype
        )
        found.append(sent)
    return tuple(found)
