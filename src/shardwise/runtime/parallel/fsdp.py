"""Parameters stored in pieces (ZeRO-3, FSDP): gathered before use, gradients scattered after.

W is stored as `W[D_{fsdp,expert,context}, F_tensor]` and used as `W[D, F_tensor]`: an AllGather in
the compute dtype just before the layer, and for dW its transpose, a ReduceScatter. The plan's
`storage_axes` say which axes store; gathered per pass, the copy is dropped and
gathered again for the backward pass, else it is kept (`Options.gathered`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import ad_checkpoint, lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import Parameter
from shardwise.plans.layouts import TILE_ROWS
from shardwise.runtime.init import stored_rows
from shardwise.runtime.parallel.data import gradient_spec, is_scattered
from shardwise.runtime.parallel.setup import Setup, axes_of, one_or_all
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.sharding import platform_of

Params = Mapping[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Gather:
    """The `use` hook. `moves[(group, name)]` is how one layer's array is gathered."""

    dtype: Any
    moves: Mapping[tuple[int, str], "GatherPath"]

    @jax.named_scope("parameters")
    def __call__(self, group: int, params: Params) -> Params:
        """The parameters of a layer (group -1: outside the stack) as they are computed with."""
        return {name: self._one(group, name, w) for name, w in params.items()}

    def _one(self, group: int, name: str, w: jax.Array) -> jax.Array:
        if (group, name) not in self.moves:
            return w
        move = self.moves[group, name]
        w = w.astype(self.dtype) if move.cast else w
        w = gathered(w.T if move.turned else w, move.ways, move.homes)
        w = ad_checkpoint.checkpoint_name(w, "parameters")
        return w.T if move.turned else w


@dataclass(frozen=True, slots=True)
class GatherPath:
    """How an array is gathered: through the layouts `ways`, its gradient back through `homes`. One
    that is `turned` is a matrix whose columns are gathered as rows."""

    cast: bool
    ways: tuple[NamedSharding, ...]
    homes: tuple[NamedSharding, ...]
    turned: bool = False


def gather_hook(setup: Setup) -> Gather:
    """The hook of a plan: what is stored in pieces is gathered, everything else stays."""
    moves = {}
    for row in stored_rows(setup.cfg):
        stored, used = setup.stored(row), setup.used(row)
        if stored == used:
            continue
        home = gradient_spec(row, setup) if (sums := is_scattered(row, setup)) else stored
        if row.group is not None:  # a layer of the stack has no dim of layers
            stored, used, home = (PartitionSpec(*spec[1:]) for spec in (stored, used, home))
        ways = (*_short_of_a_tile(row, stored, setup), used)
        homes = (home,) if sums else way_home(home)
        # The router and the norms are read in float32, whatever the activations are.
        cast = row.role in ("matmul", "lookup") and row.name != "router"
        key = (-1 if row.group is None else row.group, row.name)
        turned = len(ways) > 1 and stored[-1] != used[-1]
        there, back = (_laid(setup, specs, turned) for specs in (ways, homes))
        moves[key] = GatherPath(cast, there, back, turned)
    return Gather(dtype_of(setup.plan.dtypes.compute), moves)


def _laid(setup: Setup, specs: Sequence[PartitionSpec], turned: bool) -> tuple[NamedSharding, ...]:
    order = slice(None, None, -1 if turned else 1)
    return tuple(setup.sharding(PartitionSpec(*spec[order])) for spec in specs)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gathered(
    x: jax.Array, ways: tuple[NamedSharding, ...], homes: tuple[NamedSharding, ...]
) -> jax.Array:
    """An AllGather whose gradient is a ReduceScatter: a plain constraint would lay the gradient out
    like the gathered copy, which is an AllReduce. `ways` are the layouts that x goes through,
    `homes` those of the gradient; the last of each it stays in."""
    for way in ways:
        x = lax.with_sharding_constraint(x, way)
    return x


def _forward(x: jax.Array, ways: tuple[NamedSharding, ...], homes: tuple[NamedSharding, ...]):
    return gathered(x, ways, homes), None


def _backward(ways: Any, homes: tuple[NamedSharding, ...], _: None, dx: jax.Array):
    for home in homes:
        dx = lax.with_sharding_constraint(dx, home)
    return (dx,)


gathered.defvjp(_forward, _backward)


def _short_of_a_tile(
    row: Parameter, stored: PartitionSpec, setup: Setup
) -> tuple[PartitionSpec, ...]:
    """Where a device's piece of a layer's matrix has fewer rows than a tile of a TPU: its layout
    with the innermost axes gathered, so that it has them. Gathered at once, rows come in tiles of
    two of which one is empty, and are copied before each use."""
    cut = {i: axes_of(entry) for i, entry in enumerate(stored) if len(axes_of(entry)) > 1}
    on_gpu = platform_of(setup.mesh) == "gpu"
    if row.group is None or len(stored) != 2 or len(cut) != 1 or on_gpu:
        return ()
    ((dim, axes),) = cut.items()
    rows = [row.dims[dim][1] // setup.size(axes[: i + 1]) for i in range(len(axes))]
    if axes[0] not in setup.plan.storage_axes or not rows[-1] < TILE_ROWS <= rows[0]:
        return ()
    whole = list(stored)
    whole[dim] = one_or_all(axes[: sum(n >= TILE_ROWS for n in rows)])
    return (PartitionSpec(*whole),)


def way_home(spec: PartitionSpec) -> tuple[PartitionSpec, ...]:
    """How a gradient whose sums are the compiler's comes to lie as `spec`: scattered over the axes
    that cut sequences first, then over `context`, which cuts tokens. Asked for both at once, XLA
    gathers what both matmuls read instead (the gradients of all logits, 127 GiB for Llama 3 8B on
    64 chips)."""
    return PartitionSpec(*map(_but_context, spec)), spec


def _but_context(entry: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    return one_or_all(tuple(axis for axis in axes_of(entry) if axis != "context"))
