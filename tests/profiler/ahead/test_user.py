"""What stands for the arguments of a user's function: shapes, arrays, numbers, and what is none."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.profiler.ahead.live import export
from shardwise.profiler.ahead.user import user_program

MODULE = """import jax, jax.numpy as jnp, numpy as np
BIAS = jnp.arange(32.0)
def f(x, w, scale):
    return (x @ w) * scale + BIAS
def shapes(mesh):
    at = jax.NamedSharding(mesh, jax.P("x"))
    return jax.ShapeDtypeStruct((8, 16), jnp.bfloat16, sharding=at), jnp.ones((16, 32)), 2.0
def arrays():
    return jnp.ones((8, 16)), np.ones((16, 32), np.float32), 2
def bare():
    return jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=jax.P("x")), jnp.ones((16, 32)), 2
def foreign(mesh):
    at = jax.NamedSharding(mesh, jax.P("rows"))
    return jax.ShapeDtypeStruct((8, 16), jnp.bfloat16, sharding=at), jnp.ones((16, 32)), 2.0
def word():
    return jnp.ones((8, 16)), jnp.ones((16, 32)), "gelu"
def one():
    return [jnp.ones((8, 16)), jnp.ones((16, 32)), 2.0]
def absent():
    raise RuntimeError("MakeArrays not available with compile-only client.")
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "argued.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "argued", raising=False)
    # A user's JAX as it comes; tests of our own arithmetic make it strict for the whole process.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def program(args):
    return user_program(jax.devices()[:1], "argued:f", f"argued:{args}", {"x": 1})


@pytest.mark.parametrize("args", ["shapes", "arrays", "bare"])
def test_arrays_and_numbers_stand_for_their_shapes(args):
    made = program(args)
    (x, w, scale), kwargs = made.arguments
    assert (x.shape, w.shape, kwargs) == ((8, 16), (16, 32), {})
    assert isinstance(x, jax.ShapeDtypeStruct)
    assert isinstance(w, jax.ShapeDtypeStruct)
    assert w.sharding == jax.NamedSharding(made.mesh, jax.P())
    assert x.sharding.spec == (jax.P() if args == "arrays" else jax.P("x"))
    assert scale == 2
    assert "8x32" in made.function.lower(*made.arguments).as_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("word", r"the argument 'gelu' is a str that JAX cannot trace; give arrays and numbers"),
        (
            "one",
            r"--args 'argued:one' gives 1 positional and 0 keyword arguments, which 'argued:f'",
        ),
        (
            "foreign",
            r"--args 'argued:foreign' cuts by an axis that the mesh lacks .*: rows .*--mesh",
        ),
        ("absent", r"--args 'argued:absent' puts an array on the devices of the mesh, which are"),
    ],
)
def test_what_is_no_argument_is_refused(args, words):
    with pytest.raises(BadRequest, match=words):
        program(args)


def scaled(x, w, scale):
    return (x @ w) * scale


@pytest.mark.parametrize("scale", [2.0, 2, True, np.float32(2), jnp.float32(2)])
def test_a_live_function_takes_arrays_and_numbers(scale):
    x, w = jnp.ones((8, 16), jnp.bfloat16), np.ones((16, 32), jnp.bfloat16)
    sent = export(scaled, (x, w, scale), {"x": 1}, "tpu")
    assert sent.names == ("x", "w", "scale")
    assert sent.specs == ([], [], [])
    # As jit has it: a number of Python's does not widen.
    plain = isinstance(scale, bool | float | int)
    (out,) = jax.export.deserialize(bytearray(sent.code)).out_avals
    assert out.dtype == (jnp.bfloat16 if plain else jnp.float32)


@pytest.mark.parametrize("scale", ["gelu", 10**30])
def test_a_live_function_takes_nothing_else(scale):
    x, w = jnp.ones((8, 16)), jnp.ones((16, 32))
    with pytest.raises(BadRequest, match=f"the argument {scale!r} is a .* that JAX cannot trace"):
        export(scaled, (x, w, scale), {"x": 1}, "tpu")


def test_a_live_functions_static_arguments_are_refused():
    jitted = partial(jax.jit, static_argnums=2)(scaled)
    x, w = jnp.ones((8, 16)), jnp.ones((16, 32))
    with pytest.raises(BadRequest, match="has static arguments"):
        export(jitted, (x, w, 2), {"x": 1}, "tpu")


def test_a_function_is_traced_within_the_mesh_of_its_arguments(tmp_path, monkeypatch):
    """One of explicit axes, where its arguments lie on one, else that of the devices."""
    code = """import jax, jax.numpy as jnp
def f(x):
    return jnp.sum(x, axis=0, dtype=x.dtype)
def own(mesh):
    kinds = (jax.sharding.AxisType.Explicit,) * len(mesh.axis_names)
    mine = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    at = jax.NamedSharding(mine, jax.P("x"))
    return jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=at)
"""
    (tmp_path / "ownmesh.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    program = user_program(jax.devices()[:1], "ownmesh:f", "ownmesh:own", {"x": 1})
    assert program.function.mesh.axis_types == (jax.sharding.AxisType.Explicit,)
    assert program.mesh.axis_types == (jax.sharding.AxisType.Auto,)


def test_constants_computed_while_tracing_do_not_run_on_the_meshs_devices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "constants.py").write_text(CONSTANTS)
    program = user_program(jax.devices()[:1], "constants:step", "constants:args", {"x": 1})
    assert program.function.lower(*program.arguments) == "lowered within x"
    program = user_program(jax.devices()[:1], "constants:broken", "constants:args", {"x": 1})
    with pytest.raises(AttributeError, match="its own mistake"):
        program.function.lower(*program.arguments)


CONSTANTS = """
import jax


class Step:
    calls = 0
    said = "'jaxlib._jax.Executable' object has no attribute 'local_devices'"

    def __call__(self):
        pass

    def lower(self):
        self.calls += 1
        if self.said != Step.said or self.calls == 1:  # on devices that are not there
            raise AttributeError(self.said)
        return "lowered within " + jax.sharding.get_abstract_mesh().axis_names[0]


step, broken = Step(), Step()
broken.said = "its own mistake"


def args():
    return ()
"""
