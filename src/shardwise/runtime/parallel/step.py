"""A training step of a plan: loss and gradients, and the update.

Without pipeline stages the whole step is one `jit` program over the mesh; parameters come in as
`initialise` or `place` laid them out. With stages `pipeline.py` runs the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig
from shardwise.runtime.init import Tree, rows_tree
from shardwise.runtime.model import cross_entropy, forward
from shardwise.runtime.options import Options, activation_apart
from shardwise.runtime.parallel.accumulation import accumulate
from shardwise.runtime.parallel.context import dealt, kernel_for, zigzag
from shardwise.runtime.parallel.data import deferred_axes, optimizer_spec
from shardwise.runtime.parallel.expert import dispatch_for
from shardwise.runtime.parallel.fsdp import gather_hook
from shardwise.runtime.parallel.packing import with_documents
from shardwise.runtime.parallel.partial_sums import partial_sums
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.tensor import CollectiveMatmuls, Stream
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.quant import product, products, row_product, row_products

Batch = Mapping[str, jax.Array]

UNROLLED_LAYERS = 16
"""Stacks up to this deep run without a loop on one CPU device: XLA fills what a loop stacks up for
the backward pass with zeros first, on one thread (6 % of a small model's step, docs/lab/log.md)."""


def options_for(setup: Setup) -> Options:
    """The model's options under a plan, for a pass that is mapped over the deferred axes."""
    plan, setup = setup.plan, replace(setup, without=deferred_axes(setup))
    alone = not setup.axes
    gather = gather_hook(setup)
    device = setup.mesh.devices.flat[0]
    on_cpu = device.platform == "cpu"
    scan = not (alone and on_cpu and setup.cfg.layers <= UNROLLED_LAYERS)
    into, out_of = _matmuls(setup)
    return Options(
        compute=plan.dtypes.compute,
        remat=plan.remat,
        remat_kinds=tuple(sorted(plan.remat_kinds.items())),
        experts="ragged",
        dispatch=dispatch_for(setup),
        kernel=kernel_for(setup),
        at=Stream(setup),
        use=gather,
        gathered="recompute" if plan.weight_gather == "per_pass" and gather.moves else "keep",
        into=into,
        out_of=out_of,
        rows=alone,
        apart=activation_apart(device.device_kind, setup.cfg.d_model, plan.remat, looped=scan),
        scan=scan,
    )


def _matmuls(setup: Setup) -> tuple[Callable[..., Any], ...]:
    if not setup.axes:
        return row_products, row_product
    if setup.explicit_sums:
        sums = partial_sums(setup)
        return sums.into, sums.out_of
    if setup.tensor_matmul == "plain":
        return products, product
    rings = CollectiveMatmuls(setup)
    return rings.into, rings.out_of


def count_of(batch: Batch) -> jax.Array:
    """Tokens that count in a whole batch, float32."""
    weights = batch.get("weights")
    tokens = batch["tokens"]
    return jnp.float32(tokens.size) if weights is None else weights.astype(jnp.float32).sum()


def share_of_loss(
    params: Any, batch: Batch, count: jax.Array, cfg: ModelConfig, options: Options, in_order: bool
) -> jax.Array:
    """Nats of these sequences over the tokens of the whole batch: shares add up to the loss."""
    logits_BTV = forward(
        params,
        batch["tokens"],
        cfg,
        options,
        positions_BT=batch.get("positions"),
        segments_BT=batch.get("segments"),
        in_order=in_order,
    )
    nats, _ = cross_entropy(logits_BTV, batch["targets"], batch.get("weights"))
    return nats / count.astype(nats.dtype)


def mesh_loss_and_grads(setup: Setup) -> Callable[[Any, Batch], tuple[jax.Array, Any]]:
    """Loss and gradients in one program, not yet compiled; gradients in the optimizer's pieces."""
    plan, cfg = setup.plan, setup.cfg
    options, in_order = options_for(setup), not zigzag(plan, cfg)
    dtype = dtype_of(plan.dtypes.grad)

    def run(params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        count = count_of(batch)

        def gradient(params: Any, part: Batch) -> tuple[jax.Array, Any]:
            return jax.value_and_grad(share_of_loss)(params, part, count, cfg, options, in_order)

        batch = dealt(with_documents(batch, plan), plan, cfg)
        if plan.microbatches == 1:
            loss, grads = gradient(params, batch)
        else:
            loss, grads = accumulate(gradient, params, batch, setup, dtype)
        specs = setup.tree(lambda row: setup.sharding(optimizer_spec(row, setup)))
        with jax.named_scope("gradients"):
            grads = jax.tree.map(lambda g: g.astype(dtype), grads)
            return loss, jax.tree.map(lax.with_sharding_constraint, grads, specs)

    return run


def shardings(setup: Setup) -> Tree:
    """The tree of NamedShardings of the parameters between steps."""
    return setup.tree(lambda row: setup.sharding(setup.stored(row)))


def trained(setup: Setup) -> Tree:
    """Which leaves are trained: buffers are not."""
    return jax.tree.map(lambda row: row.name != "router.correction", rows_tree(setup.cfg))
