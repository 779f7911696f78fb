"""One chunk of a pipeline as separate programs: F, and B, or B and W.

F gives what its backward pass needs (residuals) as arrays. What follows from parameters alone is
no residual: B makes it again. A split backward pass is one jaxpr cut in two: B has the equations
that the gradient of the chunk's input needs, W the others, and what W reads of B's results is kept
between them. So nothing is computed twice, and each matmul's dX is in B and its dW in W (Qi et al.,
arXiv 2401.10241). A loop over layers would be one equation: chunks are unrolled there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
from jax import core

Arrays = list[jax.Array]
Jaxpr = Any
INLINED = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "remat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPrograms:
    """Compiled programs of a chunk; `params` is its part of the parameters, a flat list.

    forward(params, x, extra) -> (out, kept); backward(params, kept, ct, sums) -> (dx, sums) or, if
    split, backward(params, kept, ct) -> (dx, left) and weights(params, kept, ct, left, sums) ->
    sums. `sums` are the gradients so far.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    weights: Callable[..., Any] | None


def passes(
    run: Callable[[Any, jax.Array, Any], jax.Array],
    example: tuple[Any, jax.ShapeDtypeStruct, Any],
    *,
    split: bool,
    lay: Callable[[Any], Any],
    spread: Callable[[Any], Any] = lambda params: params,
) -> ChunkPrograms:
    """The programs of `run(params, x, extra) -> out`, for arguments of these shapes.

    `lay` constrains gradients to the layout that they are summed in. `spread` is part of every
    program: it makes what `run` reads of the parameters, and gradients are those of its result.
    """
    structure: list[Any] = []
    example = (jax.eval_shape(spread, example[0]), *example[1:])

    def both(params: Any, x: jax.Array, extra: Any) -> tuple[jax.Array, Arrays]:
        out, pull = jax.vjp(lambda p, x: run(p, x, extra), params, x)
        leaves, tree = jax.tree.flatten(pull)
        structure[:] = [tree]
        return out, leaves

    closed = jax.make_jaxpr(both)(*example)
    jaxpr, consts = closed.jaxpr, closed.consts
    number = len(jax.tree.leaves(example[0]))
    fixed = _from_parameters(jaxpr, number)
    whole = jaxpr.outvars[1:]
    kept_at = [i for i, v in enumerate(whole) if not _is_fixed(v, fixed)]
    forward = _part(jaxpr, jaxpr.invars, [jaxpr.outvars[0], *(whole[i] for i in kept_at)])
    fixed_at = [i for i, v in enumerate(whole) if _is_fixed(v, fixed)]
    again = _part(jaxpr, jaxpr.invars[:number], [whole[i] for i in fixed_at])

    def run_forward(params: Any, x: jax.Array, extra: Any) -> tuple[jax.Array, Arrays]:
        out, *kept = core.eval_jaxpr(forward, consts, *jax.tree.leaves((params, x, extra)))
        return out, kept

    def pull_back(params: Any, kept: Arrays, ct: jax.Array) -> tuple[jax.Array, Any]:
        leaves: list[Any] = [None] * len(whole)
        for i, value in zip(kept_at, kept, strict=True):
            leaves[i] = value
        made = core.eval_jaxpr(again, consts, *jax.tree.leaves(params))
        for i, value in zip(fixed_at, made, strict=True):
            leaves[i] = value
        d_params, dx = jax.tree.unflatten(structure[0], leaves)(ct)
        return dx, d_params

    @jax.named_scope("gradients")
    def added(sums: Any, d_params: Any) -> Any:
        new = jax.tree.map(lambda s, d: s + d.astype(s.dtype), sums, d_params)
        return lay(new)

    if not split:

        def backward(params: Any, kept: Arrays, ct: jax.Array, sums: Any) -> tuple[jax.Array, Any]:
            dx, d_params = pull_back(spread(params), kept, ct)
            return dx, added(sums, d_params)

        return ChunkPrograms(
            forward=jax.jit(lambda params, x, extra: run_forward(spread(params), x, extra)),
            backward=jax.jit(backward, donate_argnums=3),
            weights=None,
        )
    out, kept = jax.eval_shape(run_forward, *example)
    first, second = _halves(pull_back, (example[0], kept, out))
    tree = jax.tree.structure(example[0])

    def weights(params: Any, kept: Arrays, ct: jax.Array, left: Arrays, sums: Any) -> Any:
        found = second(jax.tree.leaves((spread(params), kept, ct)), left)
        return added(sums, jax.tree.unflatten(tree, found))

    return ChunkPrograms(
        forward=jax.jit(lambda params, x, extra: run_forward(spread(params), x, extra)),
        backward=jax.jit(lambda p, kept, ct: first(jax.tree.leaves((spread(p), kept, ct)))),
        weights=jax.jit(weights, donate_argnums=4),
    )


def _halves(
    function: Callable[..., tuple[jax.Array, Any]], example: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(flat inputs -> (first output, left), (flat inputs, left) -> the other outputs)."""
    flat, tree = jax.tree.flatten(example)

    def inlined(*leaves: jax.Array) -> Arrays:
        closed = jax.make_jaxpr(function)(*jax.tree.unflatten(tree, leaves))
        return _evaluate(closed.jaxpr, closed.consts, leaves)

    closed = jax.make_jaxpr(inlined)(*flat)
    jaxpr, consts = closed.jaxpr, closed.consts
    early = _needed(jaxpr, jaxpr.outvars[:1])
    late = [e for e in _needed(jaxpr, jaxpr.outvars[1:]) if not any(e is f for f in early)]
    made = {v for e in early for v in e.outvars}
    read = [v for e in late for v in e.invars] + list(jaxpr.outvars[1:])
    left = [v for v in dict.fromkeys(v for v in read if not _literal(v)) if v in made]
    one = jaxpr.replace(eqns=early, outvars=[*jaxpr.outvars[:1], *left])
    two = jaxpr.replace(eqns=late, invars=[*jaxpr.invars, *left], outvars=jaxpr.outvars[1:])

    def first(leaves: Sequence[jax.Array]) -> tuple[jax.Array, Arrays]:
        dx, *kept = core.eval_jaxpr(one, consts, *leaves)
        return dx, kept

    def second(leaves: Sequence[jax.Array], kept: Arrays) -> Arrays:
        return core.eval_jaxpr(two, consts, *leaves, *kept)

    return first, second


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any]) -> Arrays:
    """Evaluate with the calls of `INLINED` opened, so that their equations can be told apart."""
    held: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    held.update(zip(jaxpr.invars, values, strict=True))

    def read(v: Any) -> Any:
        return v.val if _literal(v) else held[v]

    for eqn in jaxpr.eqns:
        if eqn.primitive.name in INLINED:
            inputs = [read(v) for v in eqn.invars]
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            opened = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
            outputs = _evaluate(*opened, inputs)
        else:
            names = list(dict.fromkeys(v for v in eqn.invars if not _literal(v)))
            alone = jaxpr.replace(constvars=[], invars=names, outvars=eqn.outvars, eqns=[eqn])
            outputs = core.eval_jaxpr(alone, (), *map(read, names))
        held.update(zip(eqn.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _needed(jaxpr: Jaxpr, outvars: Sequence[Any]) -> list[Any]:
    """The equations that some outputs depend on, in order."""
    wanted = {v for v in outvars if not _literal(v)}
    found = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in wanted for v in eqn.outvars):
            found.append(eqn)
            wanted.update(v for v in eqn.invars if not _literal(v))
    return found[::-1]


def _part(jaxpr: Jaxpr, invars: Sequence[Any], outvars: Sequence[Any]) -> Jaxpr:
    """The jaxpr of some outputs from some inputs."""
    return jaxpr.replace(invars=list(invars), outvars=list(outvars), eqns=_needed(jaxpr, outvars))


def _from_parameters(jaxpr: Jaxpr, number: int) -> set[Any]:
    """Variables that depend on the first `number` inputs alone."""
    fixed = {*jaxpr.invars[:number], *jaxpr.constvars}
    for eqn in jaxpr.eqns:
        if all(_is_fixed(v, fixed) for v in eqn.invars):
            fixed.update(eqn.outvars)
    return fixed


def _is_fixed(v: Any, fixed: set[Any]) -> bool:
    return _literal(v) or v in fixed


def _literal(v: Any) -> bool:
    return isinstance(v, jax.extend.core.Literal)
