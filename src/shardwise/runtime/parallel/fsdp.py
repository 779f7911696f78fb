"""Parameters stored in pieces (ZeRO-3, FSDP): gathered before use, gradients scattered after.

W is stored as `W[D_{fsdp,expert,context}, F_tensor]` and used as `W[D, F_tensor]`: an AllGather in
the compute dtype just before the layer, and for dW its transpose, a ReduceScatter. The plan's
`storage_axes` say which axes store; gathered per pass, the copy is dropped and
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
from shardwise.runtime.parallel.data import gradient_spec, is_scattered
from shardwise.runtime.parallel.setup import Setup, axes_of, one_or_all
from shardwise.runtime.precision import dtype_of

Params = Mapping[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Gather:
    """The `use` hook. `moves[(group, name)]` is (cast, used, homes) of one layer's array."""

    dtype: Any
    moves: Mapping[tuple[int, str], tuple[bool, NamedSharding, tuple[NamedSharding, ...]]]

    @jax.named_scope("parameters")
    def __call__(self, group: int, params: Params) -> Params:
        """The parameters of a layer (group -1: outside the stack) as they are computed with."""
        return {name: self._one(group, name, w) for name, w in params.items()}

    def _one(self, group: int, name: str, w: jax.Array) -> jax.Array:
        if (group, name) not in self.moves:
            return w
        cast, used, homes = self.moves[group, name]
        w = gathered(w.astype(self.dtype) if cast else w, used, homes)
        return ad_checkpoint.checkpoint_name(w, "parameters")


def gather_hook(setup: Setup) -> Gather:
    """The hook of a plan: what is stored in pieces is gathered, everything else stays."""
    moves = {}
    for row in stored_rows(setup.cfg):
        stored, used = setup.stored(row), setup.used(row)
        if stored == used:
            continue
        home = gradient_spec(row, setup) if (sums := is_scattered(row, setup)) else stored
        if row.group is not None:  # a layer of the stack has no dim of layers
            used, home = PartitionSpec(*used[1:]), PartitionSpec(*home[1:])
        homes = (setup.sharding(home),) if sums else way_home(setup, home)
        # The router and the norms are read in float32, whatever the activations are.
        cast = row.role in ("matmul", "lookup") and row.name != "router"
        key = (-1 if row.group is None else row.group, row.name)
        moves[key] = (cast, setup.sharding(used), homes)
    return Gather(dtype_of(setup.plan.dtypes.compute), moves)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gathered(x: jax.Array, used: NamedSharding, homes: tuple[NamedSharding, ...]) -> jax.Array:
    """An AllGather whose gradient is a ReduceScatter: a plain constraint would lay the gradient out
    like the gathered copy, which is an AllReduce. `homes` are the layouts that the gradient goes
    through, the last of which it stays in."""
    return lax.with_sharding_constraint(x, used)


def _forward(x: jax.Array, used: NamedSharding, homes: tuple[NamedSharding, ...]):
    return lax.with_sharding_constraint(x, used), None


def _backward(used: NamedSharding, homes: tuple[NamedSharding, ...], _: None, dx: jax.Array):
    for home in homes:
        dx = lax.with_sharding_constraint(dx, home)
    return (dx,)


gathered.defvjp(_forward, _backward)


def way_home(setup: Setup, spec: PartitionSpec) -> tuple[NamedSharding, ...]:
    """How a gradient whose sums are the compiler's comes to lie as `spec`: scattered over the axes
    that cut sequences first, then over `context`, which cuts tokens. Asked for both at once, XLA
    gathers what both matmuls read instead (the gradients of all logits, 127 GiB for Llama 3 8B on
    64 chips)."""
    first = PartitionSpec(*map(_but_context, spec))
    return setup.sharding(first), setup.sharding(spec)


def _but_context(entry: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    return one_or_all(tuple(axis for axis in axes_of(entry) if axis != "context"))
