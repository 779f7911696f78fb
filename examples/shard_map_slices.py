"""Averages and a roll of a sharded array, written as each device's own program (chapter 10).

    python examples/shard_map_slices.py

runs on 8 virtual devices and holds every result against plain JAX.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax


def mean_of_heads(x_I, mesh, head):
    """The mean over devices of the first `head` elements of each block: x[I_X] -> out[head].

    A sum over X of what each device cut off, over how many there are.
    """

    def mine(x_i):
        return lax.psum(x_i[:head], "X") / lax.axis_size("X")

    return jax.shard_map(mine, mesh=mesh, in_specs=jax.P("X"), out_specs=jax.P())(x_I)


def mean_of_blocks(x_IJ, mesh):
    """One mean for each device: x[I_X, J_Y] -> out[X, Y], without any exchange."""

    def mine(x_ij):
        return jnp.mean(x_ij, keepdims=True)

    cut = jax.P("X", "Y")
    return jax.shard_map(mine, mesh=mesh, in_specs=cut, out_specs=cut)(x_IJ)


def roll(x_I, mesh, shift):
    """`jnp.roll(x, shift)` of x[I_X]: element i goes to i + shift.

    With blocks of n elements and shift = q n + r, a block is the last r elements of the block q + 1
    places before it and the first n - r of the one q places before: two permutes, which together
    send each element once.
    """
    devices = mesh.shape["X"]

    def mine(x_i):
        places, rest = divmod(shift % (devices * len(x_i)), len(x_i))
        kept, over = x_i[: len(x_i) - rest], x_i[len(x_i) - rest :]
        return jnp.concatenate([_sent(over, places + 1), _sent(kept, places)])

    def _sent(x, places):
        pairs = [(i, (i + places) % devices) for i in range(devices)]
        return lax.ppermute(x, "X", pairs) if places % devices and len(x) else x

    return jax.shard_map(mine, mesh=mesh, in_specs=jax.P("X"), out_specs=jax.P("X"))(x_I)


def main():
    line = jax.make_mesh((8,), ("X",), axis_types=(jax.sharding.AxisType.Auto,))
    plane = jax.make_mesh((4, 2), ("X", "Y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jnp.arange(512.0)
    heads = jax.jit(partial(mean_of_heads, mesh=line, head=4))(x)
    print("mean of heads", bool(jnp.allclose(heads, x.reshape(8, 64)[:, :4].mean(0))))
    y = jnp.arange(4096.0).reshape(512, 8)
    blocks = jax.jit(partial(mean_of_blocks, mesh=plane))(y)
    print("mean of blocks", bool(jnp.allclose(blocks, y.reshape(4, 128, 2, 4).mean((1, 3)))))
    for shift in (0, 1, 64, 100, -3, 1000):
        rolled = jax.jit(partial(roll, mesh=line, shift=shift))(x)
        print(f"roll by {shift}", bool(jnp.array_equal(rolled, jnp.roll(x, shift))))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
