"""A live function, closures and all, made to travel: exported here, compiled in the child.

`jax.export` keeps operations, scopes and source lines; arguments travel as a flat list, whose names
are put back afterwards. Shardings may be on any mesh with the axes of the slice's: abstract, or of
devices that stand in for it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, MissingPart
from shardwise.profiler.ahead.compile import CompiledProgram
from shardwise.profiler.ahead.user import UserProgram, scalar

CALLS = ("jit(call)/call_exported/jit(<lambda>)/", "jit(call)/call_exported/")
_ARGUMENT = re.compile(r"(?<![\w.\]])args\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFunction:
    """A function as bytes, with the name, dims of its sharding and donation of each flat argument,
    and the axes of the mesh that it was traced on."""

    code: bytes
    names: tuple[str, ...]
    specs: tuple[Any, ...]
    donated: tuple[int, ...]
    mesh: Mapping[str, int]


def export(
    function: Callable[..., Any], args: Sequence[Any], mesh: Any, platform: str
) -> ExportedFunction:
    """Trace a function for a platform ("tpu" or "cuda") on abstract arguments.

    `mesh` is a mapping of axes, a jax Mesh or an AbstractMesh, or None for the mesh of the
    arguments' shardings; arguments are `jax.ShapeDtypeStruct`s, arrays or numbers, and those
    without a sharding lie on every device. Raises BadRequest without any mesh.
    """
    import jax
    from jax import export as jax_export

    given, tree = jax.tree.flatten(tuple(args))
    leaves = [x if hasattr(x, "shape") else scalar(x) for x in given]
    axes = _axes(mesh, leaves)
    abstract = jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes))
    specs = [_spec(x) for x in leaves]
    flat = [
        jax.ShapeDtypeStruct(
            x.shape,
            x.dtype,
            sharding=jax.NamedSharding(abstract, jax.P(*spec)),
            weak_type=getattr(x, "weak_type", False),
        )
        for x, spec in zip(leaves, specs, strict=True)
    ]
    jitted: Any = function if hasattr(function, "trace") else jax.jit(function)
    with jax.sharding.use_abstract_mesh(abstract):
        mixed = [s if hasattr(x, "shape") else x for x, s in zip(given, flat, strict=True)]
        donated = _donated(jitted, jax.tree.unflatten(tree, mixed))
        whole = jax.jit(lambda *xs: jitted(*jax.tree.unflatten(tree, xs)))
        elsewhere = [jax_export.DisabledSafetyCheck.platform()]  # to be partitioned on a CPU
        made = jax_export.export(whole, platforms=[platform], disabled_checks=elsewhere)(*flat)
    try:
        code = bytes(made.serialize())
    except ImportError:
        raise MissingPart(
            "sending a function to the compiler needs flatbuffers, which is missing; install it "
            "with `pip install '.[tpu-compile]'`"
        ) from None
    return ExportedFunction(
        code=code,
        names=_names(function, args),
        specs=tuple(specs),
        donated=tuple(i for i, given in enumerate(donated) if given),
        mesh=axes,
    )


def _donated(jitted: Any, args: Sequence[Any]) -> list[bool]:
    """Which flat arguments are given away. Raises BadRequest for static ones."""
    import jax

    info = jax.tree.leaves(jitted.trace(*args).args_info)
    if len(info) < len(jax.tree.leaves(args)):
        raise BadRequest(
            "the function has static arguments, which are no arrays to compile it for; give them "
            "within it: jax.jit(functools.partial(f, n=2))"
        )
    return [bool(getattr(x, "donated", False)) for x in info]


def _axes(mesh: Any, leaves: Sequence[Any]) -> dict[str, int]:
    found = mesh
    if found is None:
        meshes = [getattr(getattr(x, "sharding", None), "mesh", None) for x in leaves]
        found = next((m for m in meshes if m is not None), None)
    if found is None:
        raise BadRequest(
            "no argument has a sharding and no mesh is given; pass mesh={'data': 4, 'tensor': 4} "
            "or arguments with a NamedSharding"
        )
    return dict(getattr(found, "shape", found))


def _spec(x: Any) -> list[Any]:
    spec = getattr(getattr(x, "sharding", None), "spec", ())
    return [list(e) if isinstance(e, tuple) else e for e in spec]


def _names(function: Callable[..., Any], args: Sequence[Any]) -> tuple[str, ...]:
    """`w`, `state['params']['w']`: the parameter's name and the path below it."""
    import inspect

    import jax

    given = list(inspect.signature(function).parameters.values())
    found = []
    for i, arg in enumerate(args):
        known = i < len(given) and given[i].kind is not inspect.Parameter.VAR_POSITIONAL
        name = given[i].name if known else f"args[{i}]"
        paths = jax.tree_util.tree_leaves_with_path(arg)
        found += [name + jax.tree_util.keystr(path) for path, _ in paths]
    return tuple(found)


def loaded_program(
    devices: Sequence[Any],
    path: str,
    specs: Sequence[Any],
    donated: Sequence[int],
    mesh: Mapping[str, int],
) -> UserProgram:
    """Inside the child: the exported function in a file, on the devices of the mesh."""
    import jax
    import numpy as np
    from jax import export as jax_export

    exported = jax_export.deserialize(bytearray(Path(path).read_bytes()))
    array = np.array(devices, dtype=object).reshape(tuple(mesh.values()))
    made = jax.sharding.Mesh(array, tuple(mesh))
    arguments = []
    for aval, spec in zip(exported.in_avals, specs, strict=True):
        entries = [tuple(e) if isinstance(e, list) else e for e in spec]
        at = jax.NamedSharding(made, jax.P(*entries))
        arguments.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=at))
    function = jax.jit(exported.call, donate_argnums=tuple(donated))
    return UserProgram(function=function, arguments=tuple(arguments), mesh=made)


def renamed(compiled: CompiledProgram, names: Sequence[str]) -> CompiledProgram:
    """The flat arguments by their names again, and the scopes without the call between."""

    def text(old: str, quote: str) -> str:
        new = _ARGUMENT.sub(lambda m: names[int(m[1])].replace("'", quote), old)
        for call in CALLS:
            new = new.replace(call, "")
        return new

    hlo = text(compiled.hlo, "\\'")  # as the compiler writes quotes within quotes
    buffers = tuple(replace(b, op=text(b.op, "'")) for b in compiled.buffers)
    return replace(compiled, hlo=hlo, buffers=buffers)
