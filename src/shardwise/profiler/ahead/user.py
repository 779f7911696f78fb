"""A program of the user's: any jittable function and abstract arguments, by their names.

`module:function` may be jitted already. `module:abstract_args` is a function of the mesh (or of
nothing) that gives a tuple of arguments, or a tuple and a dict of keyword arguments: trees of
`jax.ShapeDtypeStruct`, with shardings on that mesh or none, which means on every device.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest


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
    with jax.set_mesh(made):
        target, abstract = named(function, "function"), named(args, "--args")
        given = _arguments(abstract, made, args)
    jitted = target if hasattr(target, "lower") else jax.jit(target)
    return UserProgram(function=_Within(jitted, made), arguments=given, mesh=made)


@dataclass(frozen=True, slots=True)
class _Within:
    """A jitted function that is lowered with its mesh set, so that bare PartitionSpecs work."""

    jitted: Any
    mesh: Any

    def lower(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        import jax

        with jax.set_mesh(self.mesh):
            return self.jitted.lower(*args, **kwargs)


def named(text: str, what: str) -> Callable[..., Any]:
    """The object that `module:name` names; the module may be in the working directory."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise BadRequest(f"{what} '{text}' is not MODULE:NAME; write it like mycode.model:train")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
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
        raise BadRequest(f"{what} '{text}': module '{module}' has no '{name}'") from None
    if not callable(found):
        raise BadRequest(f"{what} '{text}' is a {type(found).__name__}; it must be a function")
    return found


def _arguments(
    abstract: Callable[..., Any], mesh: Any, name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(positional, keyword) arguments; those without a sharding lie on every device."""
    import jax

    takes = inspect.signature(abstract).parameters
    made = abstract(mesh) if takes else abstract()
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], tuple):
        args, kwargs = made if isinstance(made[1], dict) else (made, {})
    else:
        args, kwargs = made if isinstance(made, tuple) else (made,), {}
    whole = jax.NamedSharding(mesh, jax.P())

    def laid(x: Any) -> Any:
        if not hasattr(x, "shape"):
            return x
        at = getattr(x, "sharding", None)
        if at is not None and set(at.device_set) - set(mesh.devices.flat):
            raise BadRequest(
                f"--args '{name}': an argument of shape {tuple(x.shape)} lies on devices that are "
                "not those of the mesh; make its sharding with the mesh that is passed in"
            )
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole if at is None else at)

    return tuple(jax.tree.map(laid, args)), jax.tree.map(laid, kwargs)
