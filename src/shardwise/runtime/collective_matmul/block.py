"""Two matmuls with overlapped communication on either side of what lies between them.

In[B_X, D_Y] * W_in[D, F_Y] -> Tmp[B_X, F_Y]; Tmp * W_out[F_Y, D] -> Out[B_X, D_Y].
Source: How To Scale Your Model, ch. 10, exercise 10.3.
"""

from collections.abc import Callable

import jax

from shardwise.runtime.collective_matmul.all_gather import (
    all_gather_matmul,
    all_gather_matmul_bidirectional,
)
from shardwise.runtime.collective_matmul.reduce_scatter import (
    matmul_reduce_scatter,
    matmul_reduce_scatter_bidirectional,
)


def mlp_block(
    x_BD: jax.Array,
    w_in_DF: jax.Array,
    w_out_FD: jax.Array,
    *,
    axis: str,
    activation: Callable[[jax.Array], jax.Array],
    bidirectional: bool,
) -> jax.Array:
    """activation(x w_in) w_out, inside `shard_map`.

    Local shapes: x and out [B, D/|Y|], w_in [D, F], w_out [F, D], where B and F are this device's
    own.
    """
    gather, scatter = all_gather_matmul, matmul_reduce_scatter
    if bidirectional:
        gather = all_gather_matmul_bidirectional
        scatter = matmul_reduce_scatter_bidirectional
    tmp_BF = activation(gather(x_BD, w_in_DF, axis=axis))
    return scatter(tmp_BF, w_out_FD, axis=axis)
