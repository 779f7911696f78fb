"""Products whose exchanges run beside them, as each device's own program (chapter 10).

    python examples/collective_matmuls.py

runs on 8 virtual devices, 2 for the batch (X) and 4 for the model (Y), and holds every product
against the plain one. Compiled for a slice, `shardwise compile` shows what of it overlaps.
"""

import jax
import jax.numpy as jnp
from jax import lax


def next_one(x, step=1):
    """A block from the device `step` places before on Y."""
    n = lax.axis_size("Y")
    return lax.ppermute(x, "Y", [(i, (i + step) % n) for i in range(n)])


def gather_matmul(x_bd, w_Df):
    """In[B_X, D_Y] W[D, F_Y] -> Out[B_X, F_Y]: while a block of In is multiplied with the rows of W
    that it needs, it is on its way to the next device."""
    n, here, d = lax.axis_size("Y"), lax.axis_index("Y"), x_bd.shape[1]
    out_bf = 0.0
    for step in range(n):
        coming = next_one(x_bd) if step + 1 < n else x_bd
        rows = lax.dynamic_slice_in_dim(w_Df, (here - step) % n * d, d, axis=0)
        out_bf += x_bd @ rows
        x_bd = coming
    return out_bf


def matmul_all_reduce(x_bd, w_dF, pieces=4):
    """A[B_X, D_Y] W[D_Y, F] -> Out[B_X, F]: the columns in pieces, so that the sum of one runs
    beside the product of the next."""
    columns = jnp.split(w_dF, pieces, axis=1)
    return jnp.concatenate([lax.psum(x_bd @ part, "Y") for part in columns], axis=1)


def matmul_scatter(x_bf, w_fD, step=1):
    """Tmp[B_X, F_Y] W[F_Y, D] -> Out[B_X, D_Y]: a sum travels round the ring, and each device adds
    its product for the block that the sum will end at."""
    n, here, d = lax.axis_size("Y"), lax.axis_index("Y"), w_fD.shape[1] // lax.axis_size("Y")

    def product(block):
        return x_bf @ lax.dynamic_slice_in_dim(w_fD, block % n * d, d, axis=1)

    total = product(here - step)
    for left in range(2, n + 1):
        coming = next_one(total, step)
        total = coming + product(here - step * left)
    return total


def gather_matmul_both_ways(x_bd, w_Df):
    """`gather_matmul` with half of each block going either way round the ring: half of the bytes on
    each link."""
    n, here, d = lax.axis_size("Y"), lax.axis_index("Y"), x_bd.shape[1]
    right, left = jnp.split(x_bd, 2, axis=1)
    out_bf = 0.0
    for step in range(n):
        coming = (next_one(right), next_one(left, -1)) if step + 1 < n else (right, left)
        for block, half, at in ((right, 0, here - step), (left, d // 2, here + step)):
            out_bf += block @ lax.dynamic_slice_in_dim(w_Df, at % n * d + half, d // 2, axis=0)
        right, left = coming
    return out_bf


def matmul_scatter_both_ways(x_bf, w_fD):
    """`matmul_scatter` with half of the columns of each block going either way."""
    n = lax.axis_size("Y")
    blocks = w_fD.reshape(w_fD.shape[0], n, 2, -1)
    halves = (blocks[:, :, i].reshape(w_fD.shape[0], -1) for i in range(2))
    parts = [matmul_scatter(x_bf, half, step) for half, step in zip(halves, (1, -1), strict=True)]
    return jnp.concatenate(parts, axis=1)


def mlp(x_bd, w_in, w_out):
    """In[B_X, D_Y] W_in[D, F_Y] W_out[F_Y, D] -> Out[B_X, D_Y], a relu between."""
    return matmul_scatter(jax.nn.relu(gather_matmul(x_bd, w_in)), w_out)


def mlp_both_ways(x_bd, w_in, w_out):
    """`mlp` with both products both ways."""
    hidden = jax.nn.relu(gather_matmul_both_ways(x_bd, w_in))
    return matmul_scatter_both_ways(hidden, w_out)


CUT, ROWS, COLUMNS = jax.P("X", "Y"), jax.P("Y", None), jax.P(None, "Y")
MLP = ((CUT, COLUMNS, ROWS), CUT)
PRODUCTS = {
    gather_matmul: ((CUT, COLUMNS), CUT),
    gather_matmul_both_ways: ((CUT, COLUMNS), CUT),
    matmul_all_reduce: ((CUT, ROWS), jax.P("X", None)),
    matmul_scatter: ((CUT, ROWS), CUT),
    matmul_scatter_both_ways: ((CUT, ROWS), CUT),
    mlp: MLP,
    mlp_both_ways: MLP,
}
"""How each lies on the mesh: its arguments and its result."""


def main():
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 4), ("X", "Y"), axis_types=auto)
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (16, 64), (64, 128), (128, 64)
    x, w_in, w_out = (jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))
    for function, (ins, out) in PRODUCTS.items():
        given = (x, w_in, w_out)[: len(ins)]
        plain = x @ w_in if len(ins) == 2 else jax.nn.relu(x @ w_in) @ w_out
        local = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out))
        close = jnp.allclose(local(*given), plain, rtol=1e-4, atol=1e-3)
        print(function.__name__.replace("_", " "), bool(close))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
