"""What stays the same in every written program: `program_text.py` fills in the rest."""

HEAD = '''"""{title} on mesh {mesh}, as {styles}.

Written by shardwise. `python FILE` runs it in small on {devices} virtual CPU devices and compares
with the dense product; on a machine with {devices} devices, import it and call the program.
"""

import os

if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count={devices}")

import jax
import jax.numpy as jnp
import numpy as np
{lax}from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

DTYPE = jnp.{dtype}
SHAPES = (
{shapes}
)
{small}
IN_SPECS = {specs}
OUT_SPEC = {out}


def make_mesh():
    return jax.make_mesh({shape}, {axes}, axis_types=(AxisType.{kind},) * {degree})'''

SHARD_MAP = '''def shard_map_program(mesh):
    """What each device does with its own blocks, every collective by hand."""

    def local({arguments}):
{body}

    return jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=IN_SPECS, out_specs=OUT_SPEC{check})
    )'''

JIT = '''def jit_program(mesh):
    """The products on whole arrays; XLA chooses the collectives between the shardings."""

    def whole({arguments}):
{body}

    return jax.jit(
        whole,
        in_shardings=tuple(NamedSharding(mesh, spec) for spec in IN_SPECS),
        out_shardings=NamedSharding(mesh, {out}),
    )'''

EXPLICIT = '''def explicit_program(mesh):
    """The products and reshards; each layout is part of its array's type."""

    def whole({arguments}):
{body}

    jitted = jax.jit(whole)

    def run(*arrays):
        with jax.set_mesh(mesh):
            return jitted(*arrays)

    run.jitted = jitted
    return run'''

TAIL = '''def dense({arguments}, np=np):
    """The whole product in NumPy, or in another module like it."""
{dense}


def inputs(seed=0, shapes=SMALL):
    """Small whole numbers: sums of their products are exact."""
    random = np.random.default_rng(seed)
    return tuple(random.integers(-2, 3, shape).astype(np.float32) for shape in shapes)


def place(mesh, arrays):
    return [
        jax.device_put(array.astype(DTYPE), NamedSharding(mesh, spec))
        for array, spec in zip(arrays, IN_SPECS, strict=True)
    ]


def compare(style, got, want):
    error = np.max(np.abs(got.astype(np.float64) - want))
    print(f"{{style}}: largest error {{error:g}}, largest value {{np.max(np.abs(want)):g}}")
    resolution = 2.0**-7 if DTYPE == jnp.bfloat16 else 2.0**-10 if DTYPE == jnp.float16 else 1e-6
    if error > resolution * max(1.0, np.max(np.abs(want))):
        raise SystemExit(f"{{style}} differs from the dense product")


def main():
    mesh = make_mesh()
    numbers = inputs()
    want = dense(*(number.astype(np.float64) for number in numbers))
    arrays = place(mesh, numbers)
{checks}


if __name__ == "__main__":
    main()'''
