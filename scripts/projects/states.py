"""Abstract states of flax.nnx models as their own metadata lay them on a mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

TOKENS = 1024
SEQUENCES = 16


def split(make: Callable[[], Any]) -> tuple[Any, Any]:
    """What `make` gives as graph and abstract state: nothing is computed."""
    with nnx.use_eager_sharding(False):
        return nnx.split(nnx.eval_shape(make))


def laid(state: Any, mesh: Any) -> Any:
    """The state with the shardings of its metadata; axes that the mesh lacks cut nothing."""
    specs = nnx.get_partition_spec(state)

    def struct(x: Any, spec: Any) -> Any:
        kept = [axis if axis in mesh.shape else None for axis in spec][: len(x.shape)]
        at = jax.NamedSharding(mesh, jax.P(*kept))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at)

    return jax.tree.map(struct, nnx.to_pure_dict(state), nnx.to_pure_dict(specs))


def merged(graph: Any, state: Any, values: Any) -> Any:
    """The objects of a graph with traced values."""
    nnx.replace_by_pure_dict(state, values)
    return nnx.merge(graph, state)


def batch(mesh: Any, dtype: Any = jnp.int32, *more: int) -> Any:
    """Sequences cut over fsdp."""
    at = jax.NamedSharding(mesh, jax.P("fsdp"))
    return jax.ShapeDtypeStruct((SEQUENCES, TOKENS, *more), dtype, sharding=at)
