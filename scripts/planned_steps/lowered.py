"""A plan's step compiled ahead: the runtime's own `train_step` on shapes, nothing materialised.

The devices may be described rather than here (`tpu_devices`): a program for a TPU slice compiles on
any host that has libtpu.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import ModelConfig
from shardwise.plans.train import TrainPlan
from shardwise.runtime.init import is_buffer
from shardwise.runtime.parallel.abstract import abstract_state, placed
from shardwise.runtime.parallel.chunks import deferred_count, programs, sums_shardings
from shardwise.runtime.parallel.pipeline import reduction
from shardwise.runtime.parallel.run import train_step
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.stages import (
    StagePipeline,
    held,
    pipeline_of,
    stream_shape,
    stream_sharding,
)
from shardwise.runtime.parallel.update import Update
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


def compiled_passes(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: optax.GradientTransformation,
    rank: int,
) -> Iterator[tuple[jax.stages.Compiled, int]]:
    """The programs of one rank of a pipeline with how often a step runs them, compiled with
    `WHOLE`: every chunk's passes, the sums at the end of the step, and the update.

    What goes from rank to rank is in none of them (`received`).
    """
    pipe = pipeline_of(plan, cfg, mesh)
    state = abstract_state(plan, cfg, mesh, optimizer)
    parts: list[Any] = [_part(pipe, setup) for setup in pipe.setups]
    made: Any = programs(pipe, state["params"], parts)
    setup, params = pipe.setup(rank), state["params"][rank]
    sums = _sums(pipe, rank, params)
    for chunk, stage in enumerate(pipe.stages_of(rank)):
        program, mine = made[rank, chunk], held(pipe, params, stage, chunk)
        own = held(pipe, sums, stage, chunk)
        forward = program.forward.lower(mine, _stream(pipe, rank), parts[rank])
        yield (ready := forward.compile(compiler_options=WHOLE)), plan.microbatches
        out, kept = _outputs(forward, ready)
        split = program.weights is not None
        backward = program.backward.lower(mine, kept, out, *([] if split else [own]))
        yield (ready := backward.compile(compiler_options=WHOLE)), plan.microbatches
        if program.weights is not None:
            left = _outputs(backward, ready)[1]
            weights = program.weights.lower(mine, kept, out, left, own)
            yield weights.compile(compiler_options=WHOLE), plan.microbatches
    end = jax.jit(reduction(pipe, rank), donate_argnums=0).lower(sums)
    yield (ready := end.compile(compiler_options=WHOLE)), 1
    update = Update(setup=setup, rows=pipe.rows(rank), optimizer=optimizer)
    scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=setup.sharding(PartitionSpec()))
    before = {name: part[rank] for name, part in state.items()}
    last = jax.jit(update.step, donate_argnums=0).lower(before, _outputs(end, ready), scale)
    yield last.compile(compiler_options=WHOLE), 1


def received(
    plan: TrainPlan, cfg: ModelConfig, mesh: jax.sharding.Mesh, rank: int
) -> tuple[int, int]:
    """Bytes of x on one device of a rank, and how often a step moves so many between it and the
    stages before its own: activations there, their gradients back."""
    pipe = pipeline_of(plan, cfg, mesh)
    x = _stream(pipe, rank)
    size = prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return size, 2 * plan.microbatches * sum(stage > 0 for stage in pipe.stages_of(rank))


def _stream(pipe: StagePipeline, rank: int) -> Any:
    x = stream_shape(pipe)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=stream_sharding(pipe.setup(rank)))


def _part(pipe: StagePipeline, setup: Setup) -> dict[str, jax.ShapeDtypeStruct]:
    """A microbatch of a rank."""
    shape, whole = stream_shape(pipe).shape[:2], setup.sharding(PartitionSpec())
    ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(setup.mesh))
    count = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    return {"tokens": ids, "targets": ids, "count": count}


def _sums(pipe: StagePipeline, rank: int, params: Any) -> Any:
    """A rank's sums of gradients."""
    setup, dtype = pipe.setup(rank), dtype_of(pipe.plan.dtypes.grad)
    first = (count,) if (count := deferred_count(setup)) else ()

    def one(w: jax.ShapeDtypeStruct, at: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*first, *w.shape), dtype, sharding=at)

    return jax.tree.map(one, params, sums_shardings(setup, pipe.rows(rank)))


def _outputs(lowered: jax.stages.Lowered, compiled: jax.stages.Compiled) -> Any:
    """The results of a program, as the next one takes them."""
    return jax.tree.map(placed, lowered.out_info, compiled.output_shardings)
