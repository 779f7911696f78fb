"""What a value that comes of positions alone is at some places: of counts, constants and what is
computed of them number by number, as masks of causality and windows are."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction

Place = tuple[Computation, Instruction]
"""A fusion, and the computation that it stands in: what its parameters are."""
SAMPLES, DEEPEST = 4096, 60
"""Places that are looked at, and ops that are followed back from one."""
TWO: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "and": np.logical_and,
    "or": np.logical_or,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
COMPARED: Mapping[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


class _NotOfPositions(Exception):
    """A value depends on more than where it stands."""


def share_true(e: Evidence, c: Computation, name: str, around: Place | None) -> float | None:
    """The share of a mask that is true, from a sample of its places; None where it depends on more
    than positions. `around` is the fusion that it stands in."""
    draw = np.random.default_rng(0)
    try:
        dims = _dims(c.names[name])
        at = np.stack([draw.integers(0, n, SAMPLES) for n in dims or (1,)], -1)
        return float(np.mean(_value(e, c, name, at, around, DEEPEST)))
    except _NotOfPositions:
        return None


def _value(
    e: Evidence, c: Computation, name: str, at: np.ndarray, around: Place | None, deep: int
) -> np.ndarray:
    """The numbers of a value at places [samples, dims]."""
    found = c.names[name]

    def given(n: int, places: np.ndarray = at) -> np.ndarray:
        return _value(e, c, found.operands[n], places, around, deep - 1)

    if not deep:
        raise _NotOfPositions
    match found.opcode:
        case "iota":
            return at[:, int(found.attribute("iota_dimension"))]
        case "constant" if prod(_dims(found)) == 1:
            return np.full(len(at), _number(found))
        case "broadcast":
            return given(0, at[:, list(found.integers("dimensions"))])
        case "compare":
            return COMPARED[found.attribute("direction")](given(0), given(1))
        case "not":
            return np.logical_not(given(0))
        case opcode if opcode in TWO:
            return TWO[opcode](given(0), given(1))
        case "convert" | "copy" | "bitcast" | "reshape":
            return given(0, _same_places(_dims(found), _dims(c.names[found.operands[0]]), at))
        case "parameter" if around is not None:
            outer, fusion = around
            return _value(e, outer, fusion.operands[int(found.literal)], at, None, deep - 1)
        case "fusion":
            body = e.module.computation(found.called[0])
            return _value(e, body, body.root.name, at, (c, found), deep - 1)
    raise _NotOfPositions


def _dims(found: Instruction) -> tuple[int, ...]:
    made = list(arrays(found.shape))
    if len(made) != 1:
        raise _NotOfPositions
    return made[0].dims


def _number(found: Instruction) -> float:
    words = {"true": 1.0, "false": 0.0}
    try:
        return words[found.literal] if found.literal in words else float(found.literal)
    except ValueError:
        raise _NotOfPositions from None


def _same_places(dims: tuple[int, ...], old: tuple[int, ...], at: np.ndarray) -> np.ndarray:
    """Places among the dims before, where only dims of 1 came or went."""
    kept = [i for i, n in enumerate(dims) if n > 1]
    if [dims[i] for i in kept] != [n for n in old if n > 1]:
        raise _NotOfPositions
    places = np.zeros((len(at), len(old)), dtype=at.dtype)
    places[:, [i for i, n in enumerate(old) if n > 1]] = at[:, kept]
    return places
