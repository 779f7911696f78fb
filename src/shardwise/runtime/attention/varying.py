"""Which mesh axes a value varies over inside `shard_map`, and making several agree."""

from typing import Any, TypeVar

import jax
from jax import lax

Tree = TypeVar("Tree")


def axes_of(tree: object) -> frozenset[str]:
    """The mesh axes over which any array of the tree varies; none outside `shard_map`."""
    return frozenset[str]().union(*(_axes(x) for x in jax.tree.leaves(tree)))


def varying(tree: Tree, axes: frozenset[str]) -> Tree:
    """The same values, every array varying over at least these axes.

    A loop's carry needs it, and so does a custom VJP, whose cotangents must vary as its inputs do:
    the gradient of a value that was the same everywhere is then summed by the transpose of `pcast`.
    """

    def cast(x: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - _axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def _axes(x: jax.Array) -> frozenset[str]:
    kind: Any = jax.typeof(x)
    # JAX 0.10 renamed the field `vma` to `mat.varying`.
    return kind.mat.varying if hasattr(kind, "mat") else kind.vma
