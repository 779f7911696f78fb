"""A decoding MLP that kept its FSDP sharding: `shardwise explain` says what that costs."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def mlp(x, w_in, w_out):
    """x[B, D] -> x + relu(x W_in) W_out, a sequence per row."""
    with jax.named_scope("mlp"):
        return x + jax.nn.relu(x @ w_in) @ w_out


def args(mesh):
    """x[B_fsdp, D], W_in[D_fsdp, F], W_out[F, D_fsdp] with B = 64, D = 8192, F = 28672."""

    def array(shape, *axes):
        return jax.ShapeDtypeStruct(
            shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*axes))
        )

    w_in, w_out = array((8192, 28672), "fsdp"), array((28672, 8192), None, "fsdp")
    return array((64, 8192), "fsdp"), w_in, w_out
