"""Parameters stored in pieces (ZeRO-3, FSDP): gathered before use, gradients scattered after.

W is stored as `W[D_{fsdp,expert,context}, F_tensor]` and used as `W[D, F_tensor]`: an AllGather in
the compute dtype just before the layer, and for dW its transpose, a ReduceScatter. The plan's
`storage_axes` say which axes store; with `reshard_after_forward` the gathered copy is dropped and
gathered again for the backward pass, else it is kept (`Options.gathered`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import ad_checkpoint, lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.runtime.init import stored_rows
from shardwise.runtime.parallel.setup import Setup, one_or_all
from shardwise.runtime.precision import dtype_of

Params = Mapping[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Gather:
    """The `use` hook. `moves[(group, name)]` is (cast, stored, used) of one layer's array."""

    dtype: Any
    moves: Mapping[tuple[int, str], tuple[bool, NamedSharding, NamedSharding]]

    def __call__(self, group: int, params: Params) -> Params:
        """The parameters of a layer (group -1: outside the stack) as they are computed with."""
        return {name: self._one(group, name, w) for name, w in params.items()}

    def _one(self, group: int, name: str, w: jax.Array) -> jax.Array:
        if (group, name) not in self.moves:
            return w
        cast, stored, used = self.moves[group, name]
        w = gathered(w.astype(self.dtype) if cast else w, stored, used)
        return ad_checkpoint.checkpoint_name(w, "parameters")


def gather_hook(setup: Setup) -> Gather:
    """The hook of a plan: what is stored in pieces is gathered, everything else stays."""
    moves = {}
    for row in stored_rows(setup.cfg):
        stored, used = setup.stored(row), setup.used(row)
        if stored == used:
            continue
        if row.group is not None:  # a layer of the stack has no dim of layers
            stored, used = PartitionSpec(*stored[1:]), PartitionSpec(*used[1:])
        # The router and the norms are read in float32, whatever the activations are.
        cast = row.role in ("matmul", "lookup") and row.name != "router"
        key = (-1 if row.group is None else row.group, row.name)
        moves[key] = (cast, setup.sharding(stored), setup.sharding(used))
    return Gather(dtype_of(setup.plan.dtypes.compute), moves)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gathered(w: jax.Array, stored: NamedSharding, used: NamedSharding) -> jax.Array:
    """An AllGather whose gradient is a ReduceScatter: a plain constraint would lay the gradient out
    like the gathered copy, which is an AllReduce.

    The gradient is first scattered over the axes that cut sequences, then over `context`, which
    cuts tokens: asked for both at once, XLA gathers what both matmuls read instead (the gradients
    of all logits, 127 GiB for Llama 3 8B on 64 chips)."""
    return lax.with_sharding_constraint(w, used)


def _forward(w: jax.Array, stored: NamedSharding, used: NamedSharding):
    return lax.with_sharding_constraint(w, used), None


def _backward(stored: NamedSharding, used: NamedSharding, _: None, dw: jax.Array):
    entries = (_but_context(entry) for entry in stored.spec)
    first = NamedSharding(stored.mesh, PartitionSpec(*entries))
    return (lax.with_sharding_constraint(lax.with_sharding_constraint(dw, first), stored),)


def _but_context(entry: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
    return one_or_all(tuple(axis for axis in names if axis != "context"))


gathered.defvjp(_forward, _backward)
