"""A plan's step compiled ahead: the runtime's own `train_step` on shapes, nothing materialised.

The devices may be described rather than here (`tpu_devices`): a program for a TPU slice compiles on
any host that has libtpu.
"""

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental import topologies
from jax.sharding import NamedSharding

from shardwise.models import ModelConfig, Parameter
from shardwise.plans.train import TrainPlan
from shardwise.runtime.init import is_buffer, padded_shape, rows_tree, shapes
from shardwise.runtime.parallel.refusals import check
from shardwise.runtime.parallel.run import train_step
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.stages import pipeline_of
from shardwise.runtime.parallel.update import State, Update
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.sharding import batch_sharding

WHOLE: dict[str, Any] = {
    "exec_time_optimization_effort": -1.0,
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000",
}
"""Compiler options for libtpu under which collectives stay whole: low effort, a fraction of the
compile time, makes none asynchronous, and no matmul is cut to overlap with its gather."""


def tpu_devices(topology: str) -> list[Any]:
    """The devices of a slice that need not be here, as "v5e:2x4"; libtpu has names of its own."""
    return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)


def abstract_state(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: optax.GradientTransformation,
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
        "optimizer": jax.tree.map(_placed, kept, update.state_shardings(params)),
    }


def _placed(x: jax.ShapeDtypeStruct, at: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at)


def held_bytes(tree: Any) -> tuple[int, int]:
    """Bytes on one device of a tree's arrays, and of what no plan counts: buffers, which are not
    trained, and counters, which have no dims."""
    arrays = others = 0
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        size = prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        if x.ndim and not is_buffer(path):
            arrays += size
        else:
            others += size
    return arrays, others


def lowered_step(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: optax.GradientTransformation,
    clip: float | None = 1.0,
) -> jax.stages.Lowered:
    """`train_step` of a plan without pipeline stages, lowered for its state and batch."""
    tokens = jax.ShapeDtypeStruct(
        (plan.global_batch_sequences, plan.sequence_length),
        jnp.int32,
        sharding=batch_sharding(mesh),
    )
    step = jax.jit(train_step(plan, cfg, mesh, optimizer, clip))
    state = abstract_state(plan, cfg, mesh, optimizer)
    return step.lower(state, {"tokens": tokens, "targets": tokens})
