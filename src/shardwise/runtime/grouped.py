"""Rows that lie by group, each times the matrix of its own group: the experts of a layer.

`lax.ragged_dot` multiplies a group's rows alone. Its gradient by the matrices does not on TPUs
(libtpu 0.0.42): there XLA multiplies all rows for each group, E times the FLOPs (docs/lab/log.md).
So on TPUs that gradient is JAX's Pallas kernel `tgmm`, which goes through each group's rows once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

ROWS = (512, 256, 128)
WIDEST = 1024
"""Of a tile of the gradient: with its sum in f32, twice its inputs and itself, 12 MiB of on-chip
memory, of 16 that a kernel may take on v4 to v5p."""


def grouped_product(x_MD: jax.Array, w_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """x times its group's matrix, [M, F]; rows past the last group give what is not to be read."""
    return lax.ragged_dot(x_MD, w_EDF, sizes_E)


@jax.custom_vjp
def grouped_product_tpu(x_MD: jax.Array, w_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """`grouped_product` for TPUs, its gradient by the matrices by a kernel."""
    return grouped_product(x_MD, w_EDF, sizes_E)


def _forward(x_MD: jax.Array, w_EDF: jax.Array, sizes_E: jax.Array) -> tuple[jax.Array, Any]:
    return grouped_product(x_MD, w_EDF, sizes_E), (x_MD, w_EDF, sizes_E)


def _backward(kept: Any, dy_MF: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x_MD, w_EDF, sizes_E = kept
    _, pull = jax.vjp(lambda x: grouped_product(x, w_EDF, sizes_E), x_MD)
    return *pull(dy_MF), weight_gradient(x_MD, dy_MF, sizes_E, w_EDF.dtype), None


grouped_product_tpu.defvjp(_forward, _backward)


def weight_gradient(
    x_MD: jax.Array, dy_MF: jax.Array, sizes_E: jax.Array, dtype: Any, *, interpret: bool = False
) -> jax.Array:
    """The sum over each group's rows of x dy, [E, D, F]; `interpret` runs the kernel on a CPU."""
    (M, D), F = x_MD.shape, dy_MF.shape[1]
    rows = next((n for n in ROWS if M % n == 0), ROWS[-1])
    more = ((0, -M % rows), (0, 0))  # of no group
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # in `tgmm`
        return tgmm(
            jnp.pad(x_MD, more).T,
            jnp.pad(dy_MF, more),
            sizes_E.astype(jnp.int32),
            preferred_element_type=dtype,
            tiling=(rows, min(D, WIDEST), min(F, WIDEST)),
            interpret=interpret,
        )
