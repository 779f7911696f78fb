"""One training step of a plan: where the strategies of `runtime.parallel` join the trainer.

The state is {"params", "optimizer"}, laid out by the plan; with pipeline stages each is a tuple
over the ranks. The loop and the checkpoints know no more of it than that it is a tree of arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from shardwise.models import ModelConfig
from shardwise.plans import TrainPlan
from shardwise.runtime.parallel import check, initialise, start, train_step
from shardwise.runtime.sharding import batch_sharding, mesh_of
from shardwise.runtime.trainer.optimizer import Settings, optimizer_of

State = dict[str, Any]
Step = Callable[[State, dict[str, jax.Array]], tuple[State, dict[str, jax.Array]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`begin(key)` makes the first state, `step` takes a state (which it uses up) and a batch and
    gives the next and the metrics loss and grad_norm; `batch` is how the arrays of a batch lie."""

    begin: Callable[[jax.Array], State]
    step: Step
    batch: jax.sharding.Sharding


def program(plan: TrainPlan, cfg: ModelConfig, settings: Settings) -> Program:
    """The step of a plan on the devices at hand. Raises BadRequest for what cannot be run."""
    check(plan, cfg)
    mesh, optimizer = mesh_of(plan), optimizer_of(plan, cfg, settings)

    def begin(key: jax.Array) -> State:
        return start(plan, cfg, mesh, optimizer, initialise(plan, cfg, mesh, key))

    return Program(
        begin=begin,
        step=train_step(plan, cfg, mesh, optimizer, clip=settings.clip or None),
        batch=batch_sharding(mesh),
    )


def shapes_of(state: State) -> State:
    """The state as `jax.ShapeDtypeStruct` with shardings."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
