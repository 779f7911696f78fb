"""A plan's programs with abstract arguments: what to lower, without an array being made.

`train.py` says what a program is and makes a training step, `serve.py` the engine's prefill and
decode; `plan_program` picks the one that a plan and a phase name, for a child process that compiles
it. The mesh may be of a topology that is not here. Nothing is compiled or run here. Read `train.py`
first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.errors import check_known
from shardwise.models import load_model
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import plan_from
from shardwise.runtime.programs.serve import serve_program
from shardwise.runtime.programs.train import AbstractProgram, train_program
from shardwise.runtime.sharding import mesh_of

__all__ = ["AbstractProgram", "plan_program", "serve_program", "train_program"]

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
