"""Exchanges: which device gets whose block when a permute turns one layout into another.

A device keeps its block where it may; the others are matched in the order of their places, so that
of several copies each goes to one device. Pricing, the executor of `simulate` and the lowering to a
compiler's (source, target) pairs all read it here.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from shardwise.errors import BadRequest
from shardwise.work import Exchange, Sends

Cut = tuple[str, ...]


def exchange_of(before: Sequence[Cut], after: Sequence[Cut], axes: Sequence[str]) -> Exchange:
    """The exchange of a permute over `axes`, from the axes on each dim before and after it.

    Axes that keep their place in the index of a block name the same part of it on both sides, and
    so does the order of the dims: neither makes another exchange.
    """
    cuts = (
        tuple(tuple(axis for axis in cut if axis in axes) for cut in pair)
        for pair in zip(before, after, strict=True)
    )
    pairs = sorted(pair for pair in cuts if any(pair))
    return Exchange(
        axes=tuple(axes), before=tuple(b for b, _ in pairs), after=tuple(a for _, a in pairs)
    )


def blocks_of(exchange: Exchange, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the block that each device holds and of the one that it needs.

    Devices are counted along `exchange.axes`, of these sizes, the last one fastest. Raises
    BadRequest where the two layouts have blocks of different shapes.
    """
    degrees = dict(zip(exchange.axes, sizes, strict=True))
    if _counts(exchange.before, degrees) != _counts(exchange.after, degrees):
        mesh = ",".join(f"{axis}={n}" for axis, n in degrees.items())
        raise BadRequest(
            f"a permute over {mesh} cannot turn blocks cut by {exchange.before} into blocks cut by "
            f"{exchange.after}: their shapes differ, so gather and slice instead"
        )
    at = dict(zip(exchange.axes, places(sizes), strict=True))
    return (
        block_numbers(exchange.before, degrees, at),
        block_numbers(exchange.after, degrees, at),
    )


def exchanged(
    exchange: Exchange | Sends, sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the block that each device holds and of the one that it needs, and the device
    which it gets that from, itself where it has it. Raises BadRequest where no permute does it."""
    if isinstance(exchange, Sends):
        held = np.arange(prod(sizes))
        found = held.copy()
        for source, target in exchange.pairs:
            found[target] = source
        return held, found, found
    held, wanted = blocks_of(exchange, sizes)
    found = sources(held, wanted)
    if found is None:
        rule = "name every axis along which a block moves"
        raise BadRequest(
            f"no permute over {', '.join(exchange.axes)} turns blocks cut by {exchange.before} "
            f"into blocks cut by {exchange.after}; {rule}"
        )
    return held, wanted, found


def sources(held: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """For each device the one whose block it gets, itself where it holds what it needs; None where
    some block is needed more often, or less, than it is held."""
    found = np.arange(len(held))
    (free,) = np.nonzero(held != wanted)
    givers = free[np.argsort(held[free], kind="stable")]
    takers = free[np.argsort(wanted[free], kind="stable")]
    if not np.array_equal(held[givers], wanted[takers]):
        return None
    found[takers] = givers
    return found


def places(sizes: Sequence[int]) -> tuple[np.ndarray, ...]:
    """The place along each axis of every device of a group, the last axis fastest."""
    numbers = np.arange(prod(sizes))
    return tuple(np.unravel_index(numbers, tuple(sizes))) if sizes else ()


def block_numbers(
    cuts: Sequence[Cut], degrees: Mapping[str, int], at: Mapping[str, np.ndarray | int]
) -> np.ndarray:
    """The number of the block at each device, mixed-radix over all axes of all dims."""
    number: np.ndarray = np.asarray(0)
    for axis in (axis for cut in cuts for axis in cut):
        number = number * degrees[axis] + np.asarray(at[axis])
    return number


def _counts(cuts: Sequence[Cut], degrees: Mapping[str, int]) -> list[int]:
    return [prod(degrees[axis] for axis in cut) for cut in cuts]
