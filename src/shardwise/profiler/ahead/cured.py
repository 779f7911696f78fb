"""A user's program called otherwise: arguments donated, or laid out anew on the mesh."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.profiler.ahead.user import UserProgram, user_program


def cured_program(
    devices: Sequence[Any],
    function: str,
    args: str,
    mesh: Mapping[str, int],
    donate: Sequence[str],
    specs: Mapping[str, Sequence[Sequence[str]]],
) -> UserProgram:
    """The program of `user_program` with arguments of some names donated, and leaves of some names
    cut along each dim over the axes given."""
    import jax

    made = user_program(devices, function, args, mesh)
    given, words = made.arguments
    target = jitted = made.function.jitted
    names = _parameters(jitted, len(given))

    def cut(name: str, leaf: Any) -> Any:
        if name not in specs:
            return leaf
        spec = jax.P(*(tuple(axes) or None for axes in specs[name]))
        at = jax.NamedSharding(made.mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at)

    def tree(name: str, value: Any) -> Any:
        path = jax.tree_util.keystr
        return jax.tree_util.tree_map_with_path(lambda p, x: cut(name + path(p), x), value)

    laid = tuple(tree(name, x) for name, x in zip(names, given, strict=True))
    keyed = {name: tree(name, x) for name, x in words.items()}
    if donate:

        def call(*given: Any, **words: Any) -> Any:
            return jitted(*given, **words)

        call.__name__ = call.__qualname__ = getattr(jitted, "__name__", "call")
        call.__signature__ = inspect.signature(jitted)  # type: ignore[attr-defined]
        numbers = tuple(i for i, name in enumerate(names) if name in donate)
        keys = tuple(name for name in words if name in donate)
        target = jax.jit(call, donate_argnums=numbers, donate_argnames=keys)
    called = type(made.function)(target, made.mesh)
    return UserProgram(function=called, arguments=(laid, keyed), mesh=made.mesh)


def _parameters(function: Any, count: int) -> list[str]:
    """The names of positional arguments, as JAX calls them."""
    given = list(inspect.signature(function).parameters.values())
    kinds = [p.kind for p in given]
    many = inspect.Parameter.VAR_POSITIONAL
    known = kinds.index(many) if many in kinds else len(given)
    rest = given[known].name if many in kinds else "args"
    return [given[i].name if i < known else f"{rest}[{i - known}]" for i in range(count)]
