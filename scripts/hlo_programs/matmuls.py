"""Products of matrices: dtypes, shapes, epilogues."""

from hlo_programs.base import array, program


@program
def matmul(mesh):
    return lambda a, b: a @ b, [array(mesh, (2048, 2048)), array(mesh, (2048, 4096))], {}


@program
def matmul_large(mesh):
    return lambda a, b: a @ b, [array(mesh, (8192, 8192)), array(mesh, (8192, 8192))], {}


@program
def matmul_f32(mesh):
    shapes = [array(mesh, (1024, 1024), dtype="float32"), array(mesh, (1024, 512), dtype="float32")]
    return lambda a, b: a @ b, shapes, {}


@program
def matmul_int8(mesh):
    import jax.numpy as jnp

    def product(a, b):
        return jnp.matmul(a, b, preferred_element_type=jnp.int32)

    shapes = [array(mesh, (2048, 1024), dtype="int8"), array(mesh, (1024, 2048), dtype="int8")]
    return product, shapes, {}


@program
def matmul_fp8(mesh):
    import jax.numpy as jnp

    def product(a, b):
        return jnp.matmul(a, b, preferred_element_type=jnp.float32)

    kind = "float8_e4m3fn"
    return (
        product,
        [array(mesh, (1024, 2048), dtype=kind), array(mesh, (2048, 512), dtype=kind)],
        {},
    )


@program
def matmul_odd(mesh):
    return lambda a, b: a @ b, [array(mesh, (100, 5000)), array(mesh, (5000, 300))], {}


@program
def matmul_batched(mesh):
    import jax.numpy as jnp

    shapes = [array(mesh, (16, 256, 512)), array(mesh, (16, 512, 384))]
    return lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), shapes, {}


@program
def matmul_transposed(mesh):
    import jax.numpy as jnp

    shapes = [array(mesh, (8, 512, 4, 128)), array(mesh, (8, 256, 4, 128))]
    return lambda q, k: jnp.einsum("btnh,bsnh->bnts", q, k), shapes, {}


@program
def matmul_vector(mesh):
    return lambda a, v: a @ v, [array(mesh, (2048, 2048)), array(mesh, (2048,))], {}


@program
def matmul_bias_gelu(mesh):
    import jax

    shapes = [array(mesh, (1024, 1024)), array(mesh, (1024, 4096)), array(mesh, (4096,))]
    return lambda a, b, c: jax.nn.gelu(a @ b + c), shapes, {}


@program
def matmul_contracted_sharded(mesh):
    shapes = [
        array(mesh, (2048, 4096), "fsdp", "tensor"),
        array(mesh, (4096, 2048), "tensor", None),
    ]
    return lambda a, b: a @ b, shapes, {}
