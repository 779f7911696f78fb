"""One training step of a plan: where the strategies of `runtime.parallel` join the trainer.

The state is {"params", "optimizer"}, laid out by the plan; with pipeline stages each is a tuple
over the ranks. The loop and the checkpoints know no more of it than that it is a tree of arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shardwise.models import ModelConfig
from shardwise.plans import TrainPlan
from shardwise.runtime.checkpoint import load
from shardwise.runtime.parallel import check, initialise, place, start, train_step, unpadded, whole
from shardwise.runtime.parallel.setup import Setup, TensorMatmul
from shardwise.runtime.parallel.step import shardings
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.sharding import batch_sharding, mesh_of
from shardwise.runtime.trainer.optimizer import Settings, optimizer_of

State = dict[str, Any]
Step = Callable[[State, dict[str, jax.Array]], tuple[State, dict[str, jax.Array]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainProgram:
    """`begin(key)` makes the first state, `begin_from` that of a Hugging Face checkpoint (raises
    BadRequest for one that does not fit, by tensor and shape); `whole` gives a state's parameters
    as one tree, however many stages; `step` takes a state (which it uses up) and a batch and
    gives the next and the metrics loss and grad_norm; `batch` is how the arrays of a batch lie;
    `unpadded` has the shapes of a state without what the mesh adds to them."""

    begin: Callable[[jax.Array], State]
    begin_from: Callable[[Path], State]
    whole: Callable[[State], Any]
    step: Step
    batch: jax.sharding.Sharding
    unpadded: State


def program(
    plan: TrainPlan, cfg: ModelConfig, settings: Settings, tensor_matmul: TensorMatmul = "plain"
) -> TrainProgram:
    """The step of a plan on the devices at hand; `tensor_matmul` as in `parallel.train_step`.

    Raises BadRequest for what cannot be run.
    """
    check(plan, cfg, tensor_matmul)
    mesh, optimizer = mesh_of(plan), optimizer_of(plan, cfg, settings)
    clip = settings.clip or None

    def begin(key: jax.Array) -> State:
        return start(plan, cfg, mesh, optimizer, initialise(plan, cfg, mesh, key))

    def begin_from(folder: Path) -> State:
        dtype = dtype_of(plan.dtypes.param)
        if plan.degree("stage") > 1:
            params = place(plan, cfg, mesh, load(folder, cfg, dtype))
        else:
            params = load(folder, cfg, dtype, shardings(Setup(plan=plan, cfg=cfg, mesh=mesh)))
        return start(plan, cfg, mesh, optimizer, params)

    return TrainProgram(
        begin=begin,
        begin_from=begin_from,
        whole=lambda state: whole(plan, cfg, mesh, state["params"]),
        step=train_step(plan, cfg, mesh, optimizer, clip, tensor_matmul),
        batch=batch_sharding(mesh),
        unpadded=unpadded(plan, cfg, mesh, optimizer),
    )


def shapes_of(state: State) -> State:
    """The state as `jax.ShapeDtypeStruct` with shardings."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
