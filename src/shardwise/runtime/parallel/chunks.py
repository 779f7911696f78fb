"""What a chunk of a pipeline computes, as the programs of its passes.

Sums over `replica` and `data` are left for the end of the step as without stages
(`accumulation.py`): the chunk is mapped over their shards, with parameters and gradients
`W[n_data, D, F]` of which a device has the one that is its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.runtime.model import call_of, cross_entropy, embed, head
from shardwise.runtime.options import Options
from shardwise.runtime.parallel.accumulation import running_sharding
from shardwise.runtime.parallel.context import zigzag
from shardwise.runtime.parallel.data import deferred_axes
from shardwise.runtime.parallel.passes import ChunkPrograms, passes
from shardwise.runtime.parallel.setup import Setup, one_or_all
from shardwise.runtime.parallel.stages import StagePipeline, Tree, held, stream_shape
from shardwise.runtime.parallel.step import options_for
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.stack import run_stack

Batch = Mapping[str, jax.Array]
Chunk = Callable[[Tree, jax.Array, Batch], jax.Array]
"""(params, x[B, T, D], microbatch) -> x after the chunk; after the last its share of the loss."""


def programs(
    pipe: StagePipeline, params: tuple[Tree, ...], parts: list[Batch]
) -> dict[tuple[int, int], ChunkPrograms]:
    """The programs of every (rank, chunk), traced; they are compiled when first run. `parts` is a
    microbatch of every rank."""
    schedule, found = pipe.schedule, {}
    for rank in range(schedule.stages):
        setup = pipe.setup(rank)
        options = options_for(setup)
        if schedule.splits_backward:
            options = replace(options, scan=False)
        for chunk, stage in enumerate(pipe.stages_of(rank)):
            specs = sums_shardings(setup, held(pipe, pipe.rows(rank), stage, chunk))
            found[rank, chunk] = passes(
                _mapped(_chunk(pipe, stage, options), setup),
                (held(pipe, params[rank], stage, chunk), stream_shape(pipe), parts[rank]),
                split=schedule.splits_backward,
                spread=partial(_spread, specs=specs, count=deferred_count(setup)),
                lay=partial(_lay, specs=specs),
            )
    return found


def deferred_count(setup: Setup) -> int:
    """Shards that keep sums of their own until the end of the step; 0 where none does."""
    axes = deferred_axes(setup)
    return prod(setup.degree(axis) for axis in axes) if axes else 0


def sums_shardings(setup: Setup, rows: Tree) -> Tree:
    """How the sums of gradients lie, [n, ...] with n for the shards that keep their own."""
    return jax.tree.map(lambda row: running_sharding(row, setup), rows)


def zero_sums(setup: Setup, rows: Tree, params: Tree) -> Tree:
    """The sums before the first microbatch."""
    dtype, count = dtype_of(setup.plan.dtypes.grad), deferred_count(setup)
    first = (count,) if count else ()

    def zeros(w: jax.Array, at: NamedSharding) -> jax.Array:
        return jnp.zeros((*first, *w.shape), dtype, device=at)

    return jax.tree.map(zeros, params, sums_shardings(setup, rows))


def _spread(tree: Tree, specs: Tree, count: int) -> Tree:
    """A copy of the parameters for each shard of its own, where the shard is: nothing moves."""
    if not count:
        return tree
    copies = jax.tree.map(lambda w: jnp.broadcast_to(w[None], (count, *w.shape)), tree)
    return _lay(copies, specs)


def _lay(tree: Tree, specs: Tree) -> Tree:
    return jax.tree.map(lax.with_sharding_constraint, tree, specs)


def _mapped(run: Chunk, setup: Setup) -> Chunk:
    """The chunk over the shards of the deferred axes, from whole x to whole x."""
    deferred, count = deferred_axes(setup), deferred_count(setup)
    if not count:
        return run
    spec = PartitionSpec(one_or_all(deferred), *replace(setup, without=deferred).inner("BT"))

    def cut(x: jax.Array) -> jax.Array:
        x = x.reshape(count, x.shape[0] // count, *x.shape[1:])
        return lax.with_sharding_constraint(x, setup.sharding(spec))

    def mapped(params: Tree, x_BTD: jax.Array, part: Batch) -> jax.Array:
        pieces = {name: x if name == "count" else cut(x) for name, x in part.items()}
        over = {name: None if name == "count" else 0 for name in part}
        every = jax.vmap(run, in_axes=(0, 0, over), spmd_axis_name=deferred)
        out = every(params, cut(x_BTD), pieces)
        return out.sum() if out.ndim == 1 else out.reshape(x_BTD.shape)

    return mapped


def _chunk(pipe: StagePipeline, stage: int, options: Options) -> Chunk:
    cfg, in_order = pipe.cfg, not zigzag(pipe.plan, pipe.cfg)
    first, last = pipe.bounds[stage]

    def run(params: Tree, x_BTD: jax.Array, part: Batch) -> jax.Array:
        call = call_of(
            part["tokens"],
            cfg,
            options,
            part.get("positions"),
            part.get("segments"),
            in_order=in_order,
        )
        if stage == 0:
            x_BTD = x_BTD + embed(params, part["tokens"], cfg, call)
        x_BTD, _ = run_stack(params["layers"], x_BTD, cfg, call, first=first, last=last)
        if stage < pipe.schedule.global_stages - 1:
            return options.at("block_input", x_BTD)
        logits_BTV = head(params, x_BTD, cfg, call)
        nats, _ = cross_entropy(logits_BTV, part["targets"], part.get("weights"))
        return nats / part["count"].astype(nats.dtype)

    return run
