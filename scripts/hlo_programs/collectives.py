"""Collectives, one kind each, and rings of them."""

import jax
import jax.numpy as jnp

from hlo_programs.base import DATA, EVERYTHING, array, mapped, program
from hlo_programs.layers import transformer_step


@program
def all_gather(mesh):
    def gather(x):
        one = jax.lax.all_gather(x, "tensor", axis=1, tiled=True)
        return jax.lax.all_gather(one, DATA, tiled=True)

    shape = array(mesh, (1024, 1024), DATA, "tensor")
    return mapped(mesh, gather, jax.P(DATA, "tensor"), jax.P()), [shape], {}


@program
def reduce_scatter(mesh):
    function = mapped(
        mesh,
        lambda x: jax.lax.psum_scatter(x, ("fsdp", "tensor"), tiled=True),
        jax.P("replica"),
        jax.P(EVERYTHING),
    )
    return function, [array(mesh, (1024, 2048), "replica", dtype="float32")], {}


@program
def all_reduce(mesh):

    def reduce(x, y):
        return jax.lax.psum((x, y), "fsdp"), jax.lax.pmax(x, ("replica", "tensor"))

    shapes = [array(mesh, (512, 1024)), array(mesh, (256,), dtype="float32")]
    return mapped(mesh, reduce, (jax.P(), jax.P()), ((jax.P(), jax.P()), jax.P())), shapes, {}


@program
def all_to_all(mesh):
    function = mapped(
        mesh,
        lambda x: jax.lax.all_to_all(x, ("fsdp", "tensor"), 1, 0, tiled=True),
        jax.P(("fsdp", "tensor"), None),
        jax.P(None, ("fsdp", "tensor")),
    )
    return function, [array(mesh, (1024, 2048), ("fsdp", "tensor"))], {}


@program
def ragged_all_to_all(mesh):

    def exchange(x, sizes):
        offsets = jnp.cumsum(sizes) - sizes
        return jax.lax.ragged_all_to_all(
            x, jnp.zeros_like(x), offsets, sizes, offsets, sizes, axis_name="fsdp"
        )

    shapes = [array(mesh, (512, 256), "fsdp"), array(mesh, (4,), "fsdp", dtype="int32")]
    return mapped(mesh, exchange, (jax.P("fsdp"), jax.P("fsdp")), jax.P("fsdp")), shapes, {}


@program
def permute_ring(mesh):

    def around(x):
        ring = [(i, (i + 1) % 8) for i in range(8)]
        return jax.lax.fori_loop(0, 7, lambda _, y: jax.lax.ppermute(y, EVERYTHING, ring) + x, x)

    spec = jax.P(EVERYTHING)
    return mapped(mesh, around, spec, spec), [array(mesh, (8192, 512), *spec)], {}


@program
def collective_matmul(mesh):
    """A gather hidden behind the product it feeds, written as a ring."""
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
    function = mapped(mesh, product, (jax.P(both), jax.P(None, both)), jax.P(None, both))
    return function, [array(mesh, (4096, 1024), both), array(mesh, (1024, 4096), None, both)], {}


@program
def multi_slice(mesh):
    """Gradients summed over two slices of four."""
    return transformer_step(mesh, ("fsdp", "tensor"), None, EVERYTHING)


@program
def resharding(mesh):
    def move(x):
        return jax.lax.with_sharding_constraint(x * 2, jax.NamedSharding(mesh, jax.P(None, DATA)))

    return move, [array(mesh, (2048, 1024), DATA)], {}
