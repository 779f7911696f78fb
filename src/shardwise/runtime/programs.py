"""A plan's programs with abstract arguments: what to lower, without an array being made.

A training step as `shardwise train` runs it; `serve_programs.py` has prefill and decode. The mesh
may be of a topology that is not here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.errors import BadRequest, unknown
from shardwise.models import ModelConfig, load_model
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import plan_from
from shardwise.runtime.parallel.lowered import abstract_state
from shardwise.runtime.parallel.run import step_program
from shardwise.runtime.sharding import batch_sharding, mesh_of
from shardwise.runtime.trainer.optimizer import Settings, optimizer_of

PHASES = {TrainPlan: ("train",), ServePlan: ("prefill", "decode")}
STEPS = 1000
"""Steps of the run whose step is made: constants of the learning rate, which cost nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A jitted function and its arguments, to be lowered: `function.lower(*arguments)`."""

    function: Any
    arguments: tuple[Any, ...]
    mesh: jax.sharding.Mesh


def plan_program(devices: Sequence[Any], plan: Mapping[str, Any], phase: str) -> Program:
    """The program of a plan, given as plain values, on devices in the order of its mesh.

    `phase` is train of a training plan, prefill or decode of a serving plan.
    """
    from shardwise.runtime.serve_programs import serve_program

    loaded = plan_from(plan, "the plan")
    if phase not in PHASES[type(loaded)]:
        raise unknown("phase", phase, PHASES[type(loaded)], "of this kind of plan")
    cfg, mesh = load_model(loaded.model), mesh_of(loaded.mesh, devices)
    if isinstance(loaded, TrainPlan):
        return train_program(loaded, cfg, mesh)
    return serve_program(loaded, cfg, mesh, phase)


def train_program(plan: TrainPlan, cfg: ModelConfig, mesh: jax.sharding.Mesh) -> Program:
    """(state, batch) -> (state, metrics); the state is donated.

    Raises BadRequest for pipeline stages: their step is many programs, run by a table.
    """
    if plan.degree("stage") > 1:
        raise BadRequest(
            f"mesh axis 'stage' is {plan.degree('stage')}; a pipelined step is many programs, and "
            "only a step that is one can be compiled ahead: plan with --pin stage=1"
        )
    settings = Settings(steps=STEPS)
    optimizer = optimizer_of(plan, cfg, settings)
    shape = (plan.global_batch_sequences, plan.sequence_length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(mesh))
    batch = {"tokens": tokens, "targets": tokens}
    return Program(
        function=step_program(plan, cfg, mesh, optimizer, settings.clip),
        arguments=(abstract_state(plan, cfg, mesh, optimizer), batch),
        mesh=mesh,
    )
