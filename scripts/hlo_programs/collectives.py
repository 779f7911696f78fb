"""Collectives, one kind each, and rings of them."""

from hlo_programs.base import array, mapped, program
from hlo_programs.layers import transformer_step


@program
def all_gather(mesh):
    import jax

    def gather(x):
        one = jax.lax.all_gather(x, "tensor", axis=1, tiled=True)
        return jax.lax.all_gather(one, ("replica", "fsdp"), tiled=True)

    p = jax.P
    shape = array(mesh, (1024, 1024), ("replica", "fsdp"), "tensor")
    return mapped(mesh, gather, p(("replica", "fsdp"), "tensor"), p()), [shape], {}


@program
def reduce_scatter(mesh):
    import jax

    p = jax.P
    function = mapped(
        mesh,
        lambda x: jax.lax.psum_scatter(x, ("fsdp", "tensor"), tiled=True),
        p("replica"),
        p(("replica", "fsdp", "tensor")),
    )
    return function, [array(mesh, (1024, 2048), "replica", dtype="float32")], {}


@program
def all_reduce(mesh):
    import jax

    p = jax.P

    def reduce(x, y):
        return jax.lax.psum((x, y), "fsdp"), jax.lax.pmax(x, ("replica", "tensor"))

    shapes = [array(mesh, (512, 1024)), array(mesh, (256,), dtype="float32")]
    return mapped(mesh, reduce, (p(), p()), ((p(), p()), p())), shapes, {}


@program
def all_to_all(mesh):
    import jax

    p = jax.P
    function = mapped(
        mesh,
        lambda x: jax.lax.all_to_all(x, ("fsdp", "tensor"), 1, 0, tiled=True),
        p(("fsdp", "tensor"), None),
        p(None, ("fsdp", "tensor")),
    )
    return function, [array(mesh, (1024, 2048), ("fsdp", "tensor"))], {}


@program
def ragged_all_to_all(mesh):
    import jax
    import jax.numpy as jnp

    p = jax.P

    def exchange(x, sizes):
        offsets = jnp.cumsum(sizes) - sizes
        return jax.lax.ragged_all_to_all(
            x, jnp.zeros_like(x), offsets, sizes, offsets, sizes, axis_name="fsdp"
        )

    shapes = [array(mesh, (512, 256), "fsdp"), array(mesh, (4,), "fsdp", dtype="int32")]
    return mapped(mesh, exchange, (p("fsdp"), p("fsdp")), p("fsdp")), shapes, {}


@program
def permute_ring(mesh):
    import jax

    p = jax.P

    def around(x):
        ring = [(i, (i + 1) % 8) for i in range(8)]
        everything = ("replica", "fsdp", "tensor")
        return jax.lax.fori_loop(0, 7, lambda _, y: jax.lax.ppermute(y, everything, ring) + x, x)

    spec = p(("replica", "fsdp", "tensor"))
    return mapped(mesh, around, spec, spec), [array(mesh, (8192, 512), *spec)], {}


@program
def collective_matmul(mesh):
    """A gather hidden behind the product it feeds, written as a ring."""
    import jax
    import jax.numpy as jnp

    p = jax.P
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def product(x, w):
        out = jnp.zeros((x.shape[0] * 4, w.shape[1]), x.dtype)
        me = jax.lax.axis_index(("fsdp", "tensor"))
        for turn in range(4):
            at = (me - turn) % 4 * x.shape[0]
            out = jax.lax.dynamic_update_slice(out, x @ w, (at, 0))
            x = jax.lax.ppermute(x, ("fsdp", "tensor"), ring) if turn < 3 else x
        return out

    both = ("fsdp", "tensor")
    function = mapped(mesh, product, (p(both), p(None, both)), p(None, both))
    return function, [array(mesh, (4096, 1024), both), array(mesh, (1024, 4096), None, both)], {}


@program
def multi_slice(mesh):
    """Gradients summed over two slices of four."""
    return transformer_step(mesh, ("fsdp", "tensor"), None, ("replica", "fsdp", "tensor"))


@program
def resharding(mesh):
    import jax

    def move(x):
        return jax.lax.with_sharding_constraint(
            x * 2, jax.sharding.NamedSharding(mesh, jax.P(None, ("replica", "fsdp")))
        )

    return move, [array(mesh, (2048, 1024), ("replica", "fsdp"))], {}
