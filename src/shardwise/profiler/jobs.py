"""What runs inside the child process: programs written by `sharding/program_text.py`, checked.

JAX is imported when a job starts, so that the parent can name these functions without it.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

MOST_SAID = 300
"""Characters of an error that are told."""


def run_programs(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compile every style of every case on virtual devices; run and differentiate where asked.

    A case has `source` (as `program_source` writes it), `styles`, `run` and `gradients`, and may
    have `unsaid`, a source of which only JAX's refusal is wanted ("" where it takes it). Its answer
    maps a style to `hlo` (the compiled text), and if run to `error` and `gradient_error`: the
    largest difference from the dense product, and from its gradient for a random linear loss,
    over the largest value of each. The text is of the program's own shapes, the run of its small
    ones. Every case of a call uses the same devices.
    """
    return [_case(case) for case in cases]


def _case(case: Mapping[str, Any]) -> dict[str, Any]:
    module = ModuleType("program")
    exec(compile(case["source"], "program.py", "exec"), module.__dict__)
    mesh = module.make_mesh()
    answer: dict[str, Any] = {}
    for style in case["styles"]:
        program = getattr(module, f"{style}_program")(mesh)
        answer[style] = {"hlo": _compiled(module, mesh, program)}
        if case["run"]:
            answer[style] |= _checked(module, mesh, program, case["gradients"])
    if case.get("unsaid"):
        answer["unsaid"] = _refusal(case["unsaid"])
    return answer


def _refusal(source: str) -> str:
    """What JAX says where it does not take a program in the explicit style."""
    module = ModuleType("unsaid")
    exec(compile(source, "unsaid.py", "exec"), module.__dict__)
    mesh = module.make_mesh()
    try:
        _compiled(module, mesh, module.explicit_program(mesh))
    except Exception as error:  # whatever its types refuse
        said = " ".join(str(error).split())
        return f"{type(error).__name__}: {said.partition(' Please')[0][:MOST_SAID]}"
    return ""


def _compiled(module: ModuleType, mesh: Any, program: Any) -> str:
    import jax

    shapes = [
        jax.ShapeDtypeStruct(shape, module.DTYPE, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(module.SHAPES, module.IN_SPECS, strict=True)
    ]
    if not hasattr(program, "jitted"):
        return program.lower(*shapes).compile().as_text()
    with jax.set_mesh(mesh):  # the explicit style: types are of the mesh
        return program.jitted.lower(*shapes).compile().as_text()


def _checked(module: ModuleType, mesh: Any, program: Any, gradients: bool) -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    numbers = module.inputs()
    arrays = module.place(mesh, numbers)
    want = module.dense(*(n.astype(np.float64) for n in numbers))
    got = np.asarray(program(*arrays)).astype(np.float64)
    # A result that stays unreduced comes as a leading dim of partial sums.
    got = got.sum(0) if got.ndim > want.ndim else got
    answer = {"error": _difference(got, want)}
    if not gradients:
        return answer
    weights = np.random.default_rng(1).integers(-2, 3, want.shape).astype(np.float32)
    every = tuple(range(len(numbers)))

    def loss(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(program(*arrays).astype(jnp.float32) * weights)

    def dense_loss(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(module.dense(*arrays, np=jnp) * weights)

    have = jax.jit(jax.grad(loss, every))(*arrays)
    should = jax.jit(jax.grad(dense_loss, every))(*numbers)
    pairs = zip(have, should, strict=True)
    worst = max(_difference(np.asarray(h).astype(np.float64), np.asarray(s)) for h, s in pairs)
    return answer | {"gradient_error": worst}


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want)) / max(1.0, np.max(np.abs(want))))
