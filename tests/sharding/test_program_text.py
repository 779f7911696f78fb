"""The source of programs: what it says, what is refused. `tests/commands/shard` runs it."""

import ast
import subprocess
import sys

import pytest

from shardwise.errors import BadRequest
from shardwise.sharding import Layout, Mesh
from shardwise.sharding.program_text import program_inputs, program_source
from shardwise.sharding.steps import Program, ShardStep


def layouts(text):
    return tuple(map(Layout.parse, text.split(" * ")))


def matmul(dtype="f32", extra=()):
    """Book 3.2, case 3, with names that need care."""
    a, w, c, out = layouts("lax[heads, J_X] * W'[J_X, K] * C[heads, K]{U_X} * C[heads_X, K]")
    steps = (
        ShardStep(kind="einsum", inputs=(a, w), output=c),
        ShardStep(kind="reduce_scatter", inputs=(c,), output=out, axes=("X",), dim="heads"),
        *extra,
    )
    sizes = {"heads": 8, "J": 4, "K": 2}
    return Program(mesh=Mesh.parse("X=2,Y=4"), sizes=sizes, dtype=dtype, steps=steps)


def test_the_source_names_every_step_and_letter():
    text = program_source(matmul())
    ast.parse(text)
    assert "# C[heads, K]{U_X} = lax[heads, J_X] * W'[J_X, K]" in text
    assert 'C = jnp.einsum("hj,jk->hk", lax_, W_prime)' in text
    assert 'C_2 = lax.psum_scatter(C, "X", scatter_dimension=0, tiled=True)' in text
    assert 'IN_SPECS = (P(None, "X"), P("X", None))' in text


def test_the_explicit_style_types_the_partial_sums():
    text = program_source(matmul(), ("explicit",))
    ast.parse(text)
    assert 'out_sharding=P(None, None, unreduced={"X"})' in text
    assert 'jax.reshard(C, P("X", None))' in text
    assert "AxisType.Explicit" in text


@pytest.mark.slow
def test_a_source_sets_devices_only_when_run(tmp_path):
    path = tmp_path / "written.py"
    path.write_text(program_source(matmul()))
    code = "import os, written; print(os.environ.get('XLA_FLAGS'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "None"


def test_inputs_are_the_layouts_that_no_step_makes():
    assert [str(x) for x in program_inputs(matmul())] == ["lax[heads, J_X]", "W'[J_X, K]"]


@pytest.mark.parametrize(
    ("program", "styles", "said"),
    [
        (matmul(), ("pmap",), "unknown style 'pmap'"),
        (
            matmul(),
            ("jit", "explicit"),
            "needs Explicit axes; write it to a separate file",
        ),
        (matmul("fp4"), ("jit",), "unknown dtype of a JAX program 'fp4'"),
        (
            Program(mesh=Mesh.parse("X=2"), sizes={}, dtype="f32", steps=()),
            ("jit",),
            "no step multiplies or moves anything",
        ),
        (
            matmul(
                extra=(
                    ShardStep(
                        kind="map",
                        inputs=layouts("C[heads_X, K]"),
                        output=Layout.parse("C'[heads_X, K]"),
                        function="softmax",
                    ),
                )
            ),
            ("jit",),
            "only products and communication can be written as source",
        ),
    ],
)
def test_refusals(program, styles, said):
    with pytest.raises(BadRequest, match=said):
        program_source(program, styles)


def test_the_explicit_style_cannot_multiply_sums_that_it_made():
    a, w, c, v, out = layouts("A[I, J_X] * W[J_X, K] * C[I, K]{U_X} * V[K, L] * D[I, L]{U_X}")
    steps = (
        ShardStep(kind="einsum", inputs=(a, w), output=c),
        ShardStep(kind="einsum", inputs=(c, v), output=out),
    )
    sizes = dict.fromkeys("IJKL", 4)
    program = Program(mesh=Mesh.parse("X=2"), sizes=sizes, dtype="f32", steps=steps)
    with pytest.raises(BadRequest, match=r"cannot multiply the unreduced 'C\[I, K\]\{U_X\}'"):
        program_source(program, ("explicit",))
    ast.parse(program_source(program))
