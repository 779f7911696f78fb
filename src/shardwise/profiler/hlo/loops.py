"""How often loops run: XLA's own note where there is one, else start, step and bound as written.

TPU modules carry no note. Their loops, like all that JAX counts, keep a counter in one element of
the carried tuple: the condition compares it with a constant, the body adds a constant to it, and a
constant starts it. All three may sit in fusions, behind copies, or be carried through from outside.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardwise.profiler.hlo.text import Computation, Instruction, Module

_THROUGH = frozenset({"copy", "convert", "bitcast", "reshape", "copy-start", "copy-done"})
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


class Linear(NamedTuple):
    """An integer: an element of the tuple that the computation is given plus an offset, or the
    offset alone."""

    element: int | None
    offset: int


def trip_counts(module: Module) -> dict[tuple[str, str], int | None]:
    """(computation, name) of every `while` -> how often its body runs; None where data decides."""
    called_by = {
        name: (computation, instruction)
        for computation in module.computations.values()
        for instruction in computation.instructions
        for name in instruction.called
    }
    return {
        (computation.name, loop.name): _trips(module, called_by, computation, loop)
        for computation in module.computations.values()
        for loop in computation.instructions
        if loop.opcode == "while"
    }


_Callers = Mapping[str, tuple[Computation, Instruction]]


def _trips(
    module: Module, called_by: _Callers, computation: Computation, loop: Instruction
) -> int | None:
    noted = re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.attribute("backend_config"))
    if noted:
        return int(noted[1])
    bound = _bound(module, module.computation(loop.attribute("condition").lstrip("%")))
    if bound is None:
        return None
    element, direction, limit = bound
    body = module.computation(loop.attribute("body").lstrip("%"))
    after = _element(module, body, body.root.name, element)
    if after is None or after.element != element:
        return None
    start = _start(module, called_by, computation, loop.operands[0], element)
    return None if start is None else _count(start, after.offset, direction, limit)


def _count(start: int, step: int, direction: str, limit: int) -> int | None:
    """Rounds of `for (i = start; i <direction> limit; i += step)`; None if it never ends so."""
    if direction in ("LE", "GE"):
        direction, limit = ("LT", limit + 1) if direction == "LE" else ("GT", limit - 1)
    distance = limit - start
    if direction == "NE":
        return distance // step if step and distance % step == 0 and distance // step >= 0 else None
    if direction == "GT":
        distance, step = -distance, -step
    elif direction != "LT":
        return None
    if distance <= 0:
        return 0
    return -(-distance // step) if step > 0 else None


def _bound(module: Module, condition: Computation) -> tuple[int, str, int] | None:
    """The element that a condition compares, the direction, and the constant."""
    compare, given = _inner(module, condition, condition.root, None)
    if compare is None or compare.opcode != "compare":
        return None
    where, root = given
    left, right = (linear(module, where, name, root) for name in compare.operands)
    direction = compare.attribute("direction")
    if left is None or right is None:
        return None
    if left.element is None:
        left, right, direction = right, left, _FLIPPED[direction]
    if left.element is None or right.element is not None:
        return None
    return left.element, direction, right.offset - left.offset


_Given = Sequence["Linear | None"] | None


def _inner(
    module: Module, computation: Computation, found: Instruction, given: _Given
) -> tuple[Instruction | None, tuple[Computation, _Given]]:
    """The instruction behind fusions, calls and copies, with where it is."""
    while found.opcode in ("fusion", "call", *_THROUGH):
        if found.opcode in _THROUGH:
            following = computation.find(found.operands[0])
        else:
            given = [linear(module, computation, name, given) for name in found.operands]
            computation = module.computation(found.called[0])
            following = computation.root
        if following is None:
            return None, (computation, given)
        found = following
    return found, (computation, given)


def linear(
    module: Module, computation: Computation, name: str, given: _Given = None
) -> Linear | None:
    """An integer scalar as a Linear; None if it is not of that form.

    `given` are the parameters of a fused computation. Without it parameter 0 is the tuple.
    """
    found = computation.find(name)
    if found is None:
        return None
    opcode = found.opcode
    if opcode == "constant":
        whole = re.fullmatch(r"-?\d+", found.literal)
        return Linear(None, int(found.literal)) if whole else None
    if opcode == "parameter":
        return given[int(found.literal)] if given is not None else None
    if opcode in _THROUGH:
        return linear(module, computation, found.operands[0], given)
    if opcode == "get-tuple-element":
        index = int(found.attribute("index"))
        return _element(module, computation, found.operands[0], index, given)
    if opcode in ("add", "subtract"):
        left, right = (linear(module, computation, n, given) for n in found.operands)
        return _sum(left, right, 1 if opcode == "add" else -1)
    if opcode in ("fusion", "call"):
        inside = module.computation(found.called[0])
        values = [linear(module, computation, n, given) for n in found.operands]
        return linear(module, inside, inside.root.name, values)
    return None


def _sum(left: Linear | None, right: Linear | None, sign: int) -> Linear | None:
    if left is None or right is None or (right.element is not None and sign < 0):
        return None
    if left.element is not None and right.element is not None:
        return None
    element = left.element if left.element is not None else right.element
    return Linear(element, left.offset + sign * right.offset)


def _element(
    module: Module, computation: Computation, name: str, index: int, given: _Given = None
) -> Linear | None:
    """One element of a tuple."""
    found = computation.find(name)
    if found is None:
        return None
    if found.opcode == "tuple":
        return linear(module, computation, found.operands[index], given)
    if found.opcode == "parameter" and given is None:
        return Linear(index, 0)
    if found.opcode in ("opt-barrier", "copy"):
        return _element(module, computation, found.operands[0], index, given)
    if found.opcode in ("fusion", "call"):
        inside = module.computation(found.called[0])
        values = [linear(module, computation, n, given) for n in found.operands]
        return _element(module, inside, inside.root.name, index, values)
    if found.opcode == "while" and found.operands:
        body = module.computation(found.attribute("body").lstrip("%"))
        if _element(module, body, body.root.name, index) == Linear(index, 0):  # carried through
            return _element(module, computation, found.operands[0], index, given)
    return None


def _start(
    module: Module, called_by: _Callers, computation: Computation, name: str, element: int
) -> int | None:
    """The constant that an element of a loop's first tuple is, however far outside it was set."""
    value = _element(module, computation, name, element)
    while value is not None and value.element is not None:
        caller = called_by.get(computation.name)
        if caller is None or caller[1].opcode != "while":
            return None
        unchanged = _element(module, computation, computation.root.name, value.element)
        if unchanged != Linear(value.element, 0):
            return None
        outer = _element(module, caller[0], caller[1].operands[0], value.element)
        value = None if outer is None else Linear(outer.element, outer.offset + value.offset)
        computation = caller[0]
    return None if value is None else value.offset
