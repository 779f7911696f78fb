"""Everything else: convolutions, sorts, gathers, random numbers, loops, kernels."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from hlo_programs.base import array, mapped, program


@program
def convolution(mesh):
    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return conv, [array(mesh, (8, 64, 64, 64)), array(mesh, (3, 3, 64, 128))], {}


@program
def convolution_depthwise(mesh):
    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=512
        )

    return conv, [array(mesh, (8, 256, 512)), array(mesh, (4, 1, 512))], {}


@program
def sort(mesh):
    return lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1)), [array(mesh, (512, 512))], {}


@program
def top_k(mesh):
    return lambda x: jax.lax.top_k(x, 8), [array(mesh, (256, 4096), dtype="float32")], {}


@program
def gather(mesh):
    shapes = [array(mesh, (4096, 512), "tensor"), array(mesh, (16, 256), "fsdp", dtype="int32")]
    return lambda table, ids: table[ids], shapes, {}


@program
def scatter(mesh):
    shapes = [
        array(mesh, (4096, 512), dtype="float32"),
        array(mesh, (2048,), dtype="int32"),
        array(mesh, (2048, 512), dtype="float32"),
    ]
    return lambda table, ids, rows: table.at[ids].add(rows), shapes, {"donate_argnums": 0}


@program
def random_numbers(mesh):
    def draw(seed):
        key = jax.random.key(seed)
        return jax.random.normal(key, (512, 1024)), jax.random.bernoulli(key, 0.1, (2048,))

    return draw, [array(mesh, (), dtype="uint32")], {}


@program
def random_bits_generator(mesh):
    def draw(key):
        return jax.lax.rng_bit_generator(key, (1024, 512))

    return draw, [array(mesh, (4,), dtype="uint32")], {}


@program
def reductions(mesh):
    def reduce(x):
        pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (4, 4), (4, 4), "VALID")
        return jnp.cumsum(x, 0), jnp.argmax(x, 1), jax.nn.softmax(x), pooled, jnp.var(x)

    return reduce, [array(mesh, (1024, 2048), dtype="float32")], {}


@program
def shapes_of_all_kinds(mesh):
    def shape(x, at):
        padded = jnp.pad(x, ((3, 5), (0, 130)), constant_values=1)
        cut = jax.lax.dynamic_slice(padded, (at, 0), (100, 200))
        joined = jnp.concatenate([cut, jnp.flip(cut, 0)], 1).T
        return joined, jnp.clip(x, -1, 1).reshape(64, -1), x[::3, ::2], jnp.tile(x[:8], (1, 3))

    return shape, [array(mesh, (256, 384)), array(mesh, (), dtype="int32")], {}


@program
def while_unknown(mesh):
    """A loop whose end depends on the data: no trip count exists."""

    def solve(a, x):
        def body(state):
            x, _ = state
            new = jnp.tanh(a @ x)
            return new, jnp.max(jnp.abs(new - x))

        return jax.lax.while_loop(lambda state: state[1] > 1e-3, body, (x, jnp.float32(1)))

    wide = array(mesh, (512, 512), dtype="float32")
    return solve, [wide, wide], {}


@program
def loops_counted(mesh):
    """Loops that count up, down and by steps."""

    def count(x):
        x = jax.lax.fori_loop(0, 17, lambda i, y: y @ y * 0.1 + i, x)
        y = jax.lax.scan(lambda c, z: (c @ z, c), x, jnp.stack([x] * 9))
        state = jax.lax.while_loop(
            lambda s: s[0] < 40, lambda s: (s[0] + 3, s[1] @ s[1] * 0.01), (1, x)
        )
        back = jax.lax.scan(lambda c, z: (c @ z, None), x, y[1], reverse=True)
        return y[0], state, back[0]

    return count, [array(mesh, (256, 256))], {}


@program
def conditional(mesh):
    def choose(i, x):
        a = jax.lax.cond(i > 3, lambda y: y @ y, lambda y: y * 2, x)
        return jax.lax.switch(i, [lambda y: y + 1, lambda y: y @ y @ y, lambda y: -y], a)

    return choose, [array(mesh, (), dtype="int32"), array(mesh, (512, 512))], {}


@program
def linear_algebra(mesh):
    def solve(a, b):
        lower = jnp.linalg.cholesky(a)
        return jax.scipy.linalg.solve_triangular(lower, b, lower=True)

    wide = array(mesh, (256, 256), dtype="float32")
    return solve, [wide, wide], {}


@program
def fourier(mesh):
    return lambda x: jnp.abs(jnp.fft.rfft(x)), [array(mesh, (64, 1024), dtype="float32")], {}


@program
def host_offload(mesh):
    there = jax.NamedSharding(mesh, jax.P("fsdp"), memory_kind="pinned_host")

    def store(x, y):
        return jax.device_put(x @ y, there), x + 1

    return store, [array(mesh, (1024, 1024), "fsdp"), array(mesh, (1024, 1024))], {}


@program
def pallas(mesh):
    def kernel(a, b, out):
        out[...] = a[...] @ b[...]

    def product(a, b):
        call = pl.pallas_call(
            kernel,
            grid=(4, 4),
            in_specs=[
                pl.BlockSpec((256, 512), lambda i, j: (i, 0)),
                pl.BlockSpec((512, 256), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((256, 256), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((1024, 1024), "float32"),
            cost_estimate=pl.CostEstimate(
                flops=2 * 1024 * 1024 * 512, bytes_accessed=6 * 2**20, transcendentals=0
            ),
            name="blocked_matmul",
        )
        return call(a, b) + 1

    wide = [array(mesh, s, dtype="float32") for s in ((1024, 512), (512, 1024))]
    return mapped(mesh, product, (jax.P(), jax.P()), jax.P()), wide, {}
