"""What every program is made with: the list they enter, arrays by sharding, mapped functions."""

import jax

PROGRAMS = {}
DATA = ("replica", "fsdp")
EVERYTHING = ("replica", "fsdp", "tensor")


def program(build):
    """Enter a program into the list under its own name."""
    PROGRAMS[build.__name__] = build
    return build


def array(mesh, shape, *spec, dtype="bfloat16", **options):
    """An argument: its shape, and which axes of the mesh cut each dim."""
    sharding = jax.sharding.NamedSharding(mesh, jax.P(*spec), **options)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def mapped(mesh, function, ins, out):
    """The function of one device's blocks, over the whole mesh."""
    return jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out, check_vma=False)
