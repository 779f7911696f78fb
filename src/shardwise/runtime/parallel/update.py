"""The optimizer's half of a step: pieces of the state updated where they lie, parameters gathered.

State is {"params", "optimizer"}: parameters as stored, and what optax keeps (moments, a master
copy) in the pieces of ZeRO (`data.py`), found by the names at the end of its paths. With stages
each is a tuple, one tree per rank; an optimizer must then work tensor by tensor, for a rank sees
its own alone: so clipping by the global norm is an argument here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.runtime.init import is_buffer
from shardwise.runtime.parallel.data import optimizer_spec
from shardwise.runtime.parallel.setup import Setup, axes_of, one_or_all

if TYPE_CHECKING:  # servers have no optimizer
    import optax

Tree = Any
State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The update of one mesh: all of it, or one rank of a pipeline. `rows` is the tree of table
    rows in the places of its arrays."""

    setup: Setup
    rows: Tree
    optimizer: "optax.GradientTransformation"

    def pieces(self) -> Tree:
        """Shardings of the optimizer's pieces of the parameters."""
        return self._shardings(lambda row: optimizer_spec(row, self.setup))

    def stored(self) -> Tree:
        """Shardings of the parameters between steps."""
        return self._shardings(self.setup.stored)

    def _shardings(self, spec: Callable[[Any], PartitionSpec]) -> Tree:
        return jax.tree.map(lambda row: self.setup.sharding(spec(row)), self.rows)

    def start(self, params: Tree) -> State:
        """The state before the first step."""
        init = jax.jit(self.optimizer.init, out_shardings=self.state_shardings(params))
        return {"params": params, "optimizer": init(params)}

    def state_shardings(self, params: Tree) -> Tree:
        """Shardings of the optimizer's state: what looks like a parameter lies like its piece, what
        is smaller (sums, scales of blocks) is cut as far (`spread`), counters are everywhere."""
        made = jax.eval_shape(self.optimizer.init, params)
        whole = self.setup.sharding(PartitionSpec())
        leaves = jax.tree_util.tree_leaves_with_path(params)
        pieces = jax.tree.leaves(self.pieces())
        like = {p: (w.shape, at) for (p, w), at in zip(leaves, pieces, strict=True)}

        def one(path: tuple[Any, ...], leaf: Any) -> jax.sharding.Sharding:
            for first in range(len(path)):
                if path[first:] in like:
                    shape, at = like[path[first:]]
                    return at if shape == leaf.shape else spread(at, leaf.shape)
            return whole

        return jax.tree_util.tree_map_with_path(one, made)

    @jax.named_scope("optimizer")
    def step(self, state: State, grads: Tree, scale: jax.Array) -> State:
        """One update with gradients times `scale`. Buffers stay as they are."""
        params = state["params"]
        at = self.state_shardings(params)
        grads = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
        held = jax.tree.map(lax.with_sharding_constraint, params, self.pieces())
        with jax.numpy_dtype_promotion("standard"):  # optax mixes counters and floats
            updates, optimizer = self.optimizer.update(grads, state["optimizer"], held)

        def add(path: tuple[Any, ...], w: jax.Array, u: jax.Array) -> jax.Array:
            return w if is_buffer(path) else (w.astype(u.dtype) + u).astype(w.dtype)

        new = jax.tree_util.tree_map_with_path(add, held, updates)
        # Rounded where the pieces lie: so what is gathered is parameters, not wide updates.
        new = jax.tree.map(lax.with_sharding_constraint, new, self.pieces())
        with jax.named_scope("parameters"):
            params = jax.tree.map(lax.with_sharding_constraint, new, self.stored())
        return {
            "params": params,
            "optimizer": jax.tree.map(lax.with_sharding_constraint, optimizer, at),
        }


def spread(at: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """How something smaller than an array that lies `at` lies: each axis that cuts the array cuts
    the same dim here where it divides it, else the first of the others, from the last, that it
    divides."""
    degree, last = at.mesh.shape, len(shape) - 1
    cut: list[tuple[str, ...]] = [() for _ in shape]
    for i, entry in enumerate(at.spec):
        for axis in axes_of(entry):
            own = min(i, last)
            for dim in (own, *(d for d in range(last, -1, -1) if d != own)):
                if shape[dim] % prod(degree[a] for a in (*cut[dim], axis)) == 0:
                    cut[dim] += (axis,)
                    break
    return NamedSharding(at.mesh, PartitionSpec(*map(one_or_all, cut)))


@jax.named_scope("optimizer")
def square_norm(grads: Tree) -> jax.Array:
    """Sum of squares of all gradients, float32 (float64 of float64)."""
    leaves = jax.tree.leaves(grads)
    wide = jnp.float64 if any(g.dtype == jnp.float64 for g in leaves) else jnp.float32
    return sum((jnp.square(g.astype(wide)).sum() for g in leaves), start=jnp.zeros((), wide))


def clipping(norm: jax.Array, limit: float | None) -> jax.Array:
    """What gradients are multiplied with, so that their norm is at most `limit`."""
    if limit is None:
        return jnp.ones_like(norm)
    return jnp.minimum(1.0, limit / jnp.maximum(norm, limit * 1e-6))
