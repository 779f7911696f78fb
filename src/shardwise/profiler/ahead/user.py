"""A program of the user's: any jittable function and abstract arguments, by their names.

`module:function` may be jitted already. `module:abstract_args` is a function of the mesh (or of
nothing) that gives a tuple of arguments, or a tuple and a dict of keyword arguments: trees of
`jax.ShapeDtypeStruct`, arrays and numbers, with shardings on that mesh or none, which means on
every device; of arrays only shape and dtype are used.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.boundary.child import append_current_folder
from shardwise.errors import BadRequest

NO_AXIS = "is not found in mesh"
"""What JAX says of a PartitionSpec with an axis that its mesh does not have (0.10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProgram:
    """What is lowered: `function.lower(*arguments)`, on a mesh."""

    function: Any
    arguments: tuple[Any, ...]
    mesh: Any


def user_program(
    devices: Sequence[Any], function: str, args: str, mesh: Mapping[str, int]
) -> UserProgram:
    """The program of two names, on a mesh of the devices, which are in its order."""
    import jax
    import numpy as np

    shape = tuple(mesh.values())
    made = jax.sharding.Mesh(np.array(devices, dtype=object).reshape(shape), tuple(mesh))
    target, abstract = named(function, "function"), named(args, "--args")
    given = _arguments(abstract, made, args)
    if not hasattr(target, "lower"):
        _check_call(target, function, given, args)
    jitted = target if hasattr(target, "lower") else jax.jit(target)
    return UserProgram(function=_Within(jitted, _own_mesh(given, made)), arguments=given, mesh=made)


def _own_mesh(given: Any, made: Any) -> Any:
    """The mesh of the arguments' shardings where it is another one of the same devices and axes,
    as those of explicit axes: a function is traced within its own."""
    import jax

    for leaf in jax.tree.leaves(given):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if mesh is not None and mesh != made and mesh.shape == made.shape:
            return mesh
    return made


@dataclass(frozen=True, slots=True)
class _Within:
    """A jitted function that is traced and lowered with its mesh set, so that bare PartitionSpecs
    work."""

    jitted: Any
    mesh: Any

    def lower(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._within(lambda: self.jitted.lower(*args, **kwargs))

    def trace(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._within(lambda: self.jitted.trace(*args, **kwargs))

    def _within(self, traced: Callable[[], Any]) -> Any:
        """With the mesh set; without its devices where the function computes a constant while it is
        traced (`jax.ensure_compile_time_eval`), which they are not here for."""
        import jax

        try:
            with jax.set_mesh(self.mesh):
                return traced()
        except Exception as error:
            if not absent(error):
                raise
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            return traced()


def named(text: str, what: str) -> Callable[..., Any]:
    """The object that `module:name` names; the current folder is searched too, last."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise BadRequest(f"{what} '{text}' is not MODULE:NAME; write it like mycode.model:train")
    append_current_folder()
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"{what} '{text}': there is no module '{error.name}' here; run in its folder or "
            "install it"
        ) from None
    except AttributeError:
        lacks = f"{what} '{text}': module '{module}' has no '{name}'"
        raise BadRequest(lacks + _shadowed(module)) from None
    if not callable(found):
        raise BadRequest(f"{what} '{text}' is a {type(found).__name__}; it must be a function")
    return found


def _shadowed(module: str) -> str:
    """What to do where the user's module lies here and another of its name was found before."""
    path, found = Path.cwd() / f"{module.replace('.', '/')}.py", sys.modules.get(module)
    file = getattr(found, "__file__", None) or "built in"
    if not path.is_file() or file == str(path):
        return ""
    return f"; it is '{file}', the current folder comes last, so rename '{path.name}'"


def _arguments(
    abstract: Callable[..., Any], mesh: Any, name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(positional, keyword) arguments; those without a sharding lie on every device."""
    import jax

    made = _made(abstract, mesh, name)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], tuple):
        args, kwargs = made if isinstance(made[1], dict) else (made, {})
    else:
        args, kwargs = made if isinstance(made, tuple) else (made,), {}
    whole = jax.NamedSharding(mesh, jax.P())

    def laid(x: Any) -> Any:
        if not hasattr(x, "shape"):
            return x
        at = getattr(x, "sharding", None)
        if isinstance(x, jax.Array) and isinstance(at, jax.sharding.SingleDeviceSharding):
            at = None  # a real one, which lies where this process happens to run
        if at is not None and set(at.device_set) - set(mesh.devices.flat):
            raise BadRequest(
                f"--args '{name}': an argument of shape {tuple(x.shape)} lies on devices that are "
                "not those of the mesh; make its sharding with the mesh that is passed in"
            )
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole if at is None else at)

    with jax.set_mesh(mesh):  # which a bare PartitionSpec stands for
        return tuple(jax.tree.map(laid, args)), jax.tree.map(laid, kwargs)


def _made(abstract: Callable[..., Any], mesh: Any, name: str) -> Any:
    """What the function of the arguments gives: without the mesh set, as arrays would be made on
    its devices, which are not there; with it where the function asks for it."""
    import jax

    given = (mesh,) if inspect.signature(abstract).parameters else ()
    try:
        return abstract(*given)
    except Exception as error:
        with contextlib.suppress(Exception), jax.set_mesh(mesh):
            return abstract(*given)
        if NO_AXIS in str(error):
            raise BadRequest(
                f"--args '{name}' cuts by an axis that the mesh lacks ({str(error).rstrip('.')}); "
                "give the axes that it names, such as --mesh data=4,tensor=2"
            ) from None
        if not absent(error):
            raise
        raise BadRequest(
            f"--args '{name}' puts an array on the devices of the mesh, which are not here; give "
            "its shape, dtype and sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=...)"
        ) from None


def absent(error: Exception) -> bool:
    """Whether JAX was to run something on devices that it knows from their topology alone."""
    return any(words in str(error) for words in ("compile-only client", "Executable' object"))


def _check_call(
    target: Callable[..., Any],
    function: str,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    args: str,
) -> None:
    """Raise BadRequest for arguments that the function does not take, or that JAX does not; a
    function that is jitted already may have static ones."""
    import jax

    try:
        inspect.signature(target).bind(*given[0], **given[1])
    except TypeError as error:
        raise BadRequest(
            f"--args '{args}' gives {len(given[0])} positional and {len(given[1])} keyword "
            f"arguments, which '{function}' does not take: {error}; give them as a tuple, or a "
            "tuple and a dict"
        ) from None
    except ValueError:
        pass  # a builtin without a signature
    for leaf in jax.tree.leaves(given):
        if not hasattr(leaf, "shape"):
            scalar(leaf)


def scalar(leaf: Any) -> Any:
    """An abstract number for one of Python's. Raises BadRequest for what is none."""
    import jax

    try:
        found = jax.typeof(leaf)
    except (TypeError, OverflowError):
        raise BadRequest(
            f"the argument {leaf!r:.60} is a {type(leaf).__name__} that JAX cannot trace; give "
            "arrays and numbers, and what is static within the function: functools.partial(f, ...)"
        ) from None
    return jax.ShapeDtypeStruct(found.shape, found.dtype, weak_type=found.weak_type)
