"""A training step as a tree, whose parts are ops, times of ops, or seconds, all of one type.

    forward    gathers, as often as ahead | layer, casts                       | transfer
    backward   gathers, as often as again | layer, casts, accumulation         | transfer, scatters
    an end     gathers, ahead and again   | forward, backward, casts, accum.   | scatters

A *body* is a loop. In the middle stands its chain, whose ops follow one another; left of it what
the chain waits for, and right of it what the chain does not wait for. The gradient reduction comes
at the end of those backward rounds whose microbatch is the last one (with ZeRO-2 of all).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from shardwise.work import Quantity

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts(Generic[T]):
    """One layer and microbatch: both chains, the gathers of its parameters, the scatters of their
    gradients, adding these to those of earlier microbatches, casts of parameters."""

    forward: T
    backward: T
    gathers: T
    scatters: T
    accumulation: T
    casts: T


@dataclass(frozen=True, slots=True, kw_only=True)
class EndParts(Generic[T]):
    """One end of the model and one microbatch: its chain of both passes, and what parameters and
    gradients take. `regathers` are the gathers once more, for the backward pass."""

    chain: T
    gathers: T
    regathers: T
    scatters: T
    accumulation: T
    casts: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[T]):
    """One step of the counted device: parts of a layer of every kind and of both ends, the gradient
    reductions of each, the transfer to the next stage as a share per layer and chunk, the
    update."""

    layers: tuple[LayerParts[T], ...]
    ends: tuple[EndParts[T], EndParts[T]]
    reductions: tuple[T, ...]
    end_reductions: tuple[T, T]
    transfer: T
    update: T


def mapped(step: Step[T], to: Callable[[T], S]) -> Step[S]:
    """The step with a function applied to every part."""
    first, last = step.ends
    return Step(
        layers=tuple(_mapped(each, to) for each in step.layers),
        ends=(_mapped(first, to), _mapped(last, to)),
        reductions=tuple(map(to, step.reductions)),
        end_reductions=(to(step.end_reductions[0]), to(step.end_reductions[1])),
        transfer=to(step.transfer),
        update=to(step.update),
    )


def _mapped(parts: Any, to: Callable[[Any], Any]) -> Any:
    return replace(parts, **{f.name: to(getattr(parts, f.name)) for f in fields(parts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Body(Generic[T]):
    """One round of a loop: each part with how often it comes. The chain waits for `before`, `after`
    waits for the chain; `beside` and the chain do not wait for each other."""

    before: tuple[tuple[T, Quantity], ...] = ()
    chain: tuple[tuple[T, Quantity], ...]
    after: tuple[tuple[T, Quantity], ...] = ()
    beside: tuple[tuple[T, Quantity], ...] = ()

    def __iter__(self) -> Iterator[tuple[T, Quantity]]:
        yield from (*self.before, *self.chain, *self.after, *self.beside)


def forward_body(parts: LayerParts[T], ahead: Quantity) -> Body[T]:
    """A forward round, in which parameters are gathered `ahead` times."""
    return Body(
        before=((parts.gathers, ahead),), chain=((parts.forward, 1.0), (parts.casts, ahead))
    )


def backward_body(parts: LayerParts[T], again: Quantity) -> Body[T]:
    """A backward round without the gradient reduction; parameters are gathered `again` times."""
    return Body(
        before=((parts.gathers, again),),
        chain=((parts.backward, 1.0), (parts.casts, again), (parts.accumulation, 1.0)),
        after=((parts.scatters, 1.0),),
    )


def end_body(parts: EndParts[T], again: Quantity) -> Body[T]:
    """Both passes of an end, without the gradient reduction."""
    return Body(
        before=((parts.gathers, 1.0), (parts.regathers, again)),
        chain=((parts.chain, 1.0), (parts.casts, 1.0), (parts.accumulation, 1.0)),
        after=((parts.scatters, 1.0),),
    )


def with_transfer(body: Body[T], transfer: T, chunks: Quantity) -> Body[T]:
    """The round of a stage, which also sends a share of its activations on, once per chunk."""
    return replace(body, beside=(*body.beside, (transfer, chunks)))


def with_reduction(body: Body[T], reduction: T, times: Quantity = 1.0) -> Body[T]:
    """The round with the gradient reduction at its end."""
    return replace(body, after=(*body.after, (reduction, times)))
