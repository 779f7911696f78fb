"""A program to be lowered, and the training step that `shardwise train` runs as one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.plans import TrainPlan
from shardwise.plans.software.xla_flags import trainer_flags
from shardwise.runtime.parallel.abstract import abstract_state
from shardwise.runtime.parallel.run import step_program
from shardwise.runtime.sharding import batch_sharding
from shardwise.runtime.trainer.optimizer import Settings, optimizer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractProgram:
    """A jitted function and its arguments, to be lowered: `function.lower(*arguments)`; `notes` say
    what an answer should of how it is computed, and `options` are the compiler's that the function
    has itself."""

    function: Any
    arguments: tuple[Any, ...]
    mesh: jax.sharding.Mesh
    notes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


STEPS = 1000
"""Steps of the run whose step is made: constants of the learning rate, which cost nothing."""


def train_program(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    flags: Mapping[str, str] | None = None,
) -> AbstractProgram:
    """(state, batch) -> (state, metrics); the state is donated. `flags` are the compiler's in place
    of those that the trainer has on such devices.

    Raises BadRequest for pipeline stages: their step is many programs, run by a table.
    """
    if plan.degree("stage") > 1:
        raise BadRequest(
            f"mesh axis 'stage' is {plan.degree('stage')}; a pipelined step is several programs, "
            "and only a step of one program can be compiled ahead: plan with --pin stage=1"
        )
    settings = Settings(steps=STEPS)
    optimizer = optimizer_of(plan, cfg, settings)
    shape = (plan.global_batch_sequences, plan.sequence_length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(mesh))
    batch = {"tokens": tokens, "targets": tokens}
    if flags is None:
        flags = trainer_flags(mesh.devices.flat[0].device_kind)
    return AbstractProgram(
        function=step_program(plan, cfg, mesh, optimizer, settings.clip, flags=flags),
        arguments=(abstract_state(plan, cfg, mesh, optimizer), batch),
        mesh=mesh,
        options=flags,
    )
