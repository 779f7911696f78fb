"""The state of a training run as shapes with shardings: nothing is materialised."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import NamedSharding

from shardwise.models import ModelConfig, Parameter
from shardwise.plans.train import TrainPlan
from shardwise.runtime.init import padded_shape, rows_tree, shapes
from shardwise.runtime.parallel.refusals import check
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.stages import pipeline_of
from shardwise.runtime.parallel.update import State, Update
from shardwise.runtime.precision import dtype_of

if TYPE_CHECKING:  # servers have no optimizer
    import optax


def abstract_state(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: "optax.GradientTransformation",
) -> State:
    """The state of `run.start` as `jax.ShapeDtypeStruct` with shardings; with pipeline stages a
    tuple over the ranks of each part."""
    check(plan, cfg)
    if plan.degree("stage") == 1:
        setup = Setup(plan=plan, cfg=cfg, mesh=mesh)
        update = Update(setup=setup, rows=rows_tree(cfg), optimizer=optimizer)
        return _state(update, shapes(cfg))
    pipe = pipeline_of(plan, cfg, mesh)
    states = []
    for rank in range(pipe.schedule.stages):
        update = Update(setup=pipe.setup(rank), rows=pipe.rows(rank), optimizer=optimizer)
        states.append(_state(update, jax.eval_shape(partial(pipe.part, rank), shapes(cfg))))
    return {name: tuple(state[name] for state in states) for name in states[0]}


def _state(update: Update, whole: Any) -> State:
    """The state of one mesh, from the shapes of the parameters without padding."""
    dtype = dtype_of(update.setup.plan.dtypes.param)

    def one(row: Parameter, at: NamedSharding, w: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        first = 0 if row.group is None else 1  # a rank has fewer layers than the row
        shape = (*w.shape[:first], *padded_shape(row, at)[first:])
        return jax.ShapeDtypeStruct(shape, dtype, sharding=at)

    params = jax.tree.map(one, update.rows, update.stored(), whole)
    kept = jax.eval_shape(update.optimizer.init, params)
    return {
        "params": params,
        "optimizer": jax.tree.map(placed, kept, update.state_shardings(params)),
    }


def placed(x: jax.ShapeDtypeStruct, at: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    """The shape with a sharding."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at)
