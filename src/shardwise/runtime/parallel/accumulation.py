"""Gradient accumulation: a loop over microbatches, with sums that stay on the device.

A microbatch takes b sequences of every batch shard, so that cutting moves nothing. Sums over
`replica` and `data` are left for the end of the step (ZeRO-0 and 1): the model is mapped over their
shards, each with a gradient of its own, `dW[n_data, D, F]`, and one reduction after the loop adds
them up. Nothing of n is on one device: |n| is cut by exactly those axes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import Parameter
from shardwise.runtime.parallel.data import deferred_axes, running_spec
from shardwise.runtime.parallel.setup import Setup, axes_of, one_or_all

Batch = Mapping[str, jax.Array]
Gradient = Callable[[Any, Batch], tuple[jax.Array, Any]]
"""(params, microbatch) -> (its share of the loss, gradients)."""


def microbatches(batch: Batch, setup: Setup) -> Batch:
    """[B, ...] -> [microbatches, shards over the deferred axes, b, ...] without moving a token."""
    deferred = deferred_axes(setup)
    tokens = replace(setup, without=deferred).inner("BT")
    first, second = (prod(map(setup.degree, axes)) for axes in (deferred, axes_of(tokens[0])))
    count = setup.plan.microbatches

    def cut(x: jax.Array) -> jax.Array:
        b = x.shape[0] // (first * second * count)
        x = x.reshape(first, second, count, b, *x.shape[1:])
        x = jnp.moveaxis(x, 2, 0).reshape(count, first, second * b, *x.shape[4:])
        spec = PartitionSpec(None, one_or_all(deferred), *tokens)
        return lax.with_sharding_constraint(x, setup.sharding(spec))

    return {name: cut(x) for name, x in batch.items()}


def accumulate(
    gradient: Gradient, params: Any, batch: Batch, setup: Setup, dtype: Any
) -> tuple[jax.Array, Any]:
    """Loss and gradients of the whole batch; gradients are summed in `dtype`."""
    deferred = deferred_axes(setup)
    parts = microbatches(batch, setup)
    mapped = gradient
    if deferred:
        mapped = jax.vmap(gradient, in_axes=(None, 0), spmd_axis_name=deferred)

    def one(part: Batch) -> tuple[jax.Array, Any]:
        if not deferred:
            part = {name: x[0] for name, x in part.items()}
        loss, grads = mapped(params, part)
        grads = jax.tree.map(lambda g: g.astype(dtype), grads)
        return loss, _running(grads, setup)

    def step(carry: tuple[jax.Array, Any], part: Batch) -> tuple[Any, None]:
        return _added(carry, one(part)), None

    none = jax.eval_shape(one, {name: x[0] for name, x in parts.items()})
    loss, grads = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), none)
    (loss, grads), _ = lax.scan(step, (loss, _running(grads, setup)), parts)
    if not deferred:
        return loss, grads
    with jax.named_scope("gradients"):
        return loss.sum(), jax.tree.map(lambda g: g.sum(0), grads)


@jax.named_scope("gradients")
def _added(sums: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, sums, more)


@jax.named_scope("gradients")
def _running(grads: Any, setup: Setup) -> Any:
    """The gradients of one microbatch as they are added up."""
    specs = setup.tree(lambda row: running_sharding(row, setup))
    return jax.tree.map(lax.with_sharding_constraint, grads, specs)


def running_sharding(row: Parameter, setup: Setup) -> NamedSharding:
    """How the sum of a gradient over microbatches lies: [n, ...] where shards keep their own."""
    deferred, spec = deferred_axes(setup), running_spec(row, setup)
    if deferred:
        spec = PartitionSpec(one_or_all(deferred), *spec)
    return setup.sharding(spec)
