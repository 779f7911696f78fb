"""From a plan as plain values to one of its programs, which a child process compiles."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.errors import check_known
from shardwise.models import load_model
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import plan_from
from shardwise.runtime.programs.program import AbstractProgram
from shardwise.runtime.programs.serve import serve_program
from shardwise.runtime.programs.train import train_program
from shardwise.runtime.sharding import mesh_of

PHASES = {TrainPlan: ("train",), ServePlan: ("prefill", "decode")}


def plan_program(devices: Sequence[Any], plan: Mapping[str, Any], phase: str) -> AbstractProgram:
    """The program of a plan, given as plain values, on devices in the order of its mesh.

    `phase` is train of a training plan, prefill or decode of a serving plan.
    """
    loaded = plan_from(plan, "the plan")
    check_known("phase", phase, PHASES[type(loaded)], "of this kind of plan")
    cfg, mesh = load_model(loaded.model), mesh_of(loaded.mesh, devices)
    if isinstance(loaded, TrainPlan):
        return train_program(loaded, cfg, mesh)
    return serve_program(loaded, cfg, mesh, phase)
