"""The parameter tree from the parameter table: shapes, and random weights straight into shards."""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig, Parameter, parameters
from shardwise.models.parameters import buffers
from shardwise.models.runnable import numerics_of
from shardwise.plans.layouts import UNEVEN

Tree = dict[str, Any]
PADDED = frozenset(letter for letter, rule in UNEVEN.items() if rule == "pad")


def stored_rows(cfg: ModelConfig) -> tuple[Parameter, ...]:
    """Rows of the text model with storage of their own: no tied head, no towers; then buffers."""
    rows = tuple(p for p in parameters(cfg) if not p.shares and p.role != "tower")
    return rows + buffers(cfg)


def is_buffer(path: tuple[Any, ...]) -> bool:
    """Whether a leaf of the tree, by its key path, is read but not trained."""
    return getattr(path[-1], "key", None) == "router.correction"


def stacked_shape(row: Parameter) -> tuple[int, ...]:
    """Dims of the array that holds a row: the layers of its group first."""
    shape = tuple(size for _, size in row.dims)
    return shape if row.group is None else (row.layers, *shape)


def padded_shape(row: Parameter, sharding: Any) -> tuple[int, ...]:
    """The shape of a row's array on a mesh: F and V padded up to a multiple of what cuts them.

    The padding holds zeros and stays zero under any optimizer: no gradient reaches it.
    """
    shape = list(stacked_shape(row))
    spec = getattr(sharding, "spec", ())
    first = 0 if row.group is None else 1
    for i, entry in enumerate(spec):
        if i >= first and entry is not None and row.dims[i - first][0] in PADDED:
            names = entry if isinstance(entry, tuple) else (entry,)
            degree = int(np.prod([sharding.mesh.shape[name] for name in names]))
            shape[i] = -(-shape[i] // degree) * degree
    return tuple(shape)


def tree_of(cfg: ModelConfig, leaf: Callable[[Parameter], Any]) -> Tree:
    """The parameter tree with `leaf(row)` in each place."""
    layers: tuple[Tree, ...] = tuple({} for _ in cfg.groups)
    tree: Tree = {}
    for row in stored_rows(cfg):
        (tree if row.group is None else layers[row.group])[row.name] = leaf(row)
    return {**tree, "layers": layers}


def rows_tree(cfg: ModelConfig) -> Tree:
    """The rows themselves in the places of their arrays."""
    return tree_of(cfg, lambda row: row)


def shapes(cfg: ModelConfig, dtype: Any = jnp.float32) -> Tree:
    """The tree of `jax.ShapeDtypeStruct`, for ahead-of-time compiles."""
    return tree_of(cfg, lambda row: jax.ShapeDtypeStruct(stacked_shape(row), dtype))


def initialise(
    cfg: ModelConfig, key: jax.Array, dtype: Any = jnp.float32, shardings: Any = None
) -> Tree:
    """Random parameters, made on the devices that keep them.

    Matmuls and tables are normal with standard deviation 1 / sqrt(summed dims) (tables:
    1 / sqrt(D)), out projections smaller by sqrt(2 L) (GPT-2); norms start at one, biases at zero.
    Each tensor's numbers follow from the key, its group and its name alone, not from the sharding.
    """
    rows = rows_tree(cfg)
    wanted = shardings if shardings is not None else jax.tree.map(lambda _: None, rows)

    def make(k: jax.Array) -> Tree:
        def one(row: Parameter, sharding: Any) -> jax.Array:
            drawn, shape = _draw(row, cfg, k, dtype), padded_shape(row, sharding)
            return jnp.pad(drawn, [(0, n - m) for n, m in zip(shape, drawn.shape, strict=True)])

        return jax.tree.map(one, rows, wanted, is_leaf=lambda x: x is None)

    return jax.jit(make, out_shardings=shardings)(key)


def _draw(row: Parameter, cfg: ModelConfig, key: jax.Array, dtype: Any) -> jax.Array:
    shape, n = stacked_shape(row), numerics_of(cfg)
    if row.role == "norm":
        whole = row.name == "delta.norm"  # stored without the offset (`delta_net.py`)
        return jnp.full(shape, 1.0 if whole else 1 - n.norm_offset, dtype)
    if row.role in ("bias", "scale"):
        return jnp.zeros(shape, dtype)
    scale = 1 / np.sqrt(cfg.d_model if row.role == "lookup" else row.contracted)
    if row.name in ("attention.o", "mlp.down", "experts.down", "shared.down"):
        scale /= np.sqrt(2 * cfg.layers)
    own = jax.random.fold_in(key, zlib.crc32(f"{row.group}/{row.name}".encode()))
    return (float(scale) * jax.random.normal(own, shape, jnp.float32)).astype(dtype)
