"""Products of matrices: dtypes, shapes, epilogues."""

from functools import partial

import jax
import jax.numpy as jnp

from hlo_programs.base import PROGRAMS, array, program

SIZES = {
    "matmul": ((2048, 2048), (2048, 4096), "bfloat16"),
    "matmul_large": ((8192, 8192), (8192, 8192), "bfloat16"),
    "matmul_odd": ((100, 5000), (5000, 300), "bfloat16"),
    "matmul_vector": ((2048, 2048), (2048,), "bfloat16"),
    "matmul_f32": ((1024, 1024), (1024, 512), "float32"),
    "matmul_int8": ((2048, 1024), (1024, 2048), "int8"),
    "matmul_fp8": ((1024, 2048), (2048, 512), "float8_e4m3fn"),
}
"""Products that differ in the sizes and the dtype of their operands alone."""
SUMS = {"int8": "int32", "float8_e4m3fn": "float32"}
"""What narrow products are added up in."""


def plain_product(mesh, left, right, dtype):
    """A @ B of two whole arrays."""
    product = partial(jnp.matmul, preferred_element_type=SUMS.get(dtype))
    return product, [array(mesh, left, dtype=dtype), array(mesh, right, dtype=dtype)], {}


for name, (left, right, dtype) in SIZES.items():
    PROGRAMS[name] = partial(plain_product, left=left, right=right, dtype=dtype)


@program
def matmul_batched(mesh):
    shapes = [array(mesh, (16, 256, 512)), array(mesh, (16, 512, 384))]
    return lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), shapes, {}


@program
def matmul_transposed(mesh):
    shapes = [array(mesh, (8, 512, 4, 128)), array(mesh, (8, 256, 4, 128))]
    return lambda q, k: jnp.einsum("btnh,bsnh->bnts", q, k), shapes, {}


@program
def matmul_bias_gelu(mesh):
    shapes = [array(mesh, (1024, 1024)), array(mesh, (1024, 4096)), array(mesh, (4096,))]
    return lambda a, b, c: jax.nn.gelu(a @ b + c), shapes, {}


@program
def matmul_contracted_sharded(mesh):
    shapes = [array(mesh, (2048, 4096), "fsdp", "tensor"), array(mesh, (4096, 2048), "tensor")]
    return lambda a, b: a @ b, shapes, {}
