"""How often loops run: XLA's own note where there is one, else start, step and bound as written.

TPU modules carry no note. Their loops, like all that JAX counts, keep a counter in one element of
the carried tuple: the condition compares it with a constant, the body adds a constant to it, and a
constant starts it. All three may sit in fusions, behind copies, or be carried through from outside.
Where data ends a loop, a scope around it may say how many rounds are expected (`rounds_36`), as
our own attention does (`runtime/attention/tiles.py`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwise.errors import BadRequest
from shardwise.profiler.hlo.text import Computation, Instruction, Module

_THROUGH = frozenset({"copy", "convert", "bitcast", "reshape", "copy-start", "copy-done"})
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


class Linear(NamedTuple):
    """An integer: an element of the tuple that the computation is given plus an offset, or the
    offset alone."""

    element: int | None
    offset: int


MOST_RUNS = 10**18
"""Runs of one loop's body per step: at a nanosecond each they take thirty years."""
MOST_STEPS = 200_000
DEEPEST = 150
"""Instructions that are looked at for all counters of a module, and for one of them in a row:
counters of real programs need some tens. One that needs more is not found."""


def trip_counts(module: Module) -> dict[tuple[str, str], int | None]:
    """(computation, name) of every `while` -> how often its body runs; None where data decides."""
    called_by = {
        name: (computation, instruction)
        for computation in module.computations.values()
        for instruction in computation.instructions
        for name in instruction.called
    }
    values = _Values(module)
    return {
        (computation.name, loop.name): values.trips(called_by, computation, loop)
        for computation in module.computations.values()
        for loop in computation.instructions
        if loop.opcode == "while"
    }


_STATED = re.compile(r"\brounds_(\d{1,9})\)*/while$")


def _stated(loop: Instruction) -> int | None:
    """The rounds that the innermost scope around a loop says."""
    said = _STATED.search(loop.op_name)
    return int(said[1]) if said else None


def rounds(module: Module, loop: Instruction, count: float, times: int | None) -> float:
    """How often a loop's body runs if the loop runs `count` times; one round where its trip count
    is not known. Raises BadRequest beyond `MOST_RUNS`."""
    found = count * (1 if times is None else times)
    if found > MOST_RUNS:
        raise BadRequest(
            f"{module.what}, line {loop.line}: loop '{loop.name}' runs {found:.3g} times per step "
            f"and at most {MOST_RUNS:.0e} are counted; give the program as it was compiled"
        )
    return found


_Callers = Mapping[str, tuple[Computation, Instruction]]
_Given = Sequence["Linear | None"] | None


class _TooLongError(Exception):
    """A counter is made in more steps than are followed."""


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


def _deeper(follow: Callable[..., Linear | None]) -> Callable[..., Linear | None]:
    """A method of `_Values` as one more step, of which there may be so many in a row."""

    def counted(self: "_Values", *arguments: Any) -> Linear | None:
        self.left -= 1
        self.depth += 1
        if self.left < 0 or self.depth > DEEPEST:
            raise _TooLongError
        found = follow(self, *arguments)
        self.depth -= 1
        return found

    return counted


@dataclass
class _Values:
    """Integers of a module, followed to where they are made; `left` steps may still be taken."""

    module: Module
    left: int = MOST_STEPS
    depth: int = 0

    def trips(self, called_by: _Callers, computation: Computation, loop: Instruction) -> int | None:
        """How often a loop's body runs; None where data, or too long a chain, decides."""
        noted = re.search(
            r'"known_trip_count":\{"n":"?(\d{1,19})(?!\d)', loop.attribute("backend_config")
        )
        if noted:
            return int(noted[1])
        try:
            found = self.counted(called_by, computation, loop)
        except _TooLongError:
            self.depth, found = 0, None
        return _stated(loop) if found is None else found

    def counted(
        self, called_by: _Callers, computation: Computation, loop: Instruction
    ) -> int | None:
        condition = self.module.computation(loop.attribute("condition").lstrip("%"))
        bound = self.bound(condition)
        if bound is None:
            return None
        element, direction, limit = bound
        body = self.module.computation(loop.attribute("body").lstrip("%"))
        after = self.element(body, body.root.name, element)
        if after is None or after.element != element:
            return None
        start = self.start(called_by, computation, loop.operands[0], element)
        most = limit.offset
        if limit.element is not None:
            if self.element(body, body.root.name, limit.element) != Linear(limit.element, 0):
                return None
            set_to = self.start(called_by, computation, loop.operands[0], limit.element)
            if set_to is None:
                return None
            most += set_to
        return None if start is None else _count(start, after.offset, direction, most)

    def bound(self, condition: Computation) -> tuple[int, str, Linear] | None:
        """The element that a condition compares, the direction, and what with: a constant, or
        another element."""
        compare, given = self.inner(condition, condition.root, None)
        if compare is None or compare.opcode != "compare":
            return None
        where, root = given
        left, right = (self.linear(where, name, root) for name in compare.operands)
        direction = compare.attribute("direction")
        if left is None or right is None:
            return None
        if left.element is None:
            left, right, direction = right, left, _FLIPPED[direction]
        if left.element is None:
            return None
        return left.element, direction, Linear(right.element, right.offset - left.offset)

    def inner(
        self, computation: Computation, found: Instruction, given: _Given
    ) -> tuple[Instruction | None, tuple[Computation, _Given]]:
        """The instruction behind fusions, calls and copies, with where it is."""
        while found.opcode in ("fusion", "call", *_THROUGH):
            if found.opcode in _THROUGH:
                following = computation.find(found.operands[0])
            else:
                given = [self.linear(computation, name, given) for name in found.operands]
                computation = self.module.computation(found.called[0])
                following = computation.root
            if following is None:
                return None, (computation, given)
            found = following
        return found, (computation, given)

    def linear(self, computation: Computation, name: str, given: _Given = None) -> Linear | None:
        """An integer scalar as a Linear; None if it is not of that form.

        `given` are the parameters of a fused computation. Without it parameter 0 is the tuple.
        """
        found = computation.find(name)
        return None if found is None else self.linear_of(computation, found, given)

    @_deeper
    def linear_of(
        self, computation: Computation, found: Instruction, given: _Given
    ) -> Linear | None:
        opcode = found.opcode
        if opcode == "constant":
            whole = re.fullmatch(r"-?[0-9]{1,19}", found.literal)
            return Linear(None, int(found.literal)) if whole else None
        if opcode == "parameter":
            return given[int(found.literal)] if given is not None else None
        if opcode in _THROUGH:
            return self.linear(computation, found.operands[0], given)
        if opcode == "get-tuple-element":
            index = int(found.attribute("index"))
            return self.element(computation, found.operands[0], index, given)
        if opcode in ("add", "subtract"):
            left, right = (self.linear(computation, n, given) for n in found.operands)
            return _sum(left, right, 1 if opcode == "add" else -1)
        if opcode == "minimum":
            return _most(*(self.linear(computation, n, given) for n in found.operands))
        if opcode in ("fusion", "call"):
            inside = self.module.computation(found.called[0])
            values = [self.linear(computation, n, given) for n in found.operands]
            return self.linear(inside, inside.root.name, values)
        return None

    def element(
        self, computation: Computation, name: str, index: int, given: _Given = None
    ) -> Linear | None:
        """One element of a tuple."""
        found = computation.find(name)
        return None if found is None else self.element_of(computation, found, index, given)

    @_deeper
    def element_of(
        self, computation: Computation, found: Instruction, index: int, given: _Given
    ) -> Linear | None:
        if found.opcode == "tuple":
            if index >= len(found.operands):
                return None
            return self.linear(computation, found.operands[index], given)
        if found.opcode == "parameter" and given is None:
            return Linear(index, 0)
        if found.opcode in ("opt-barrier", "copy"):
            return self.element(computation, found.operands[0], index, given)
        if found.opcode in ("fusion", "call"):
            inside = self.module.computation(found.called[0])
            values = [self.linear(computation, n, given) for n in found.operands]
            return self.element(inside, inside.root.name, index, values)
        if found.opcode == "while":
            body = self.module.computation(found.attribute("body").lstrip("%"))
            if self.element(body, body.root.name, index) == Linear(index, 0):  # carried through
                return self.element(computation, found.operands[0], index, given)
        return None

    def start(
        self, called_by: _Callers, computation: Computation, name: str, element: int
    ) -> int | None:
        """The constant that an element of a loop's first tuple is, however far outside it was
        set."""
        value = self.element(computation, name, element)
        while value is not None and value.element is not None:
            caller = called_by.get(computation.name)
            if caller is None or caller[1].opcode != "while":
                return None
            unchanged = self.element(computation, computation.root.name, value.element)
            if unchanged != Linear(value.element, 0):
                return None
            outer = self.element(caller[0], caller[1].operands[0], value.element)
            value = None if outer is None else Linear(outer.element, outer.offset + value.offset)
            computation = caller[0]
        return None if value is None else value.offset


def _most(left: Linear | None, right: Linear | None) -> Linear | None:
    """The lesser of two constants; of a constant and what data decides, the constant."""
    known = [x for x in (left, right) if x is not None and x.element is None]
    carried = [x for x in (left, right) if x is not None and x.element is not None]
    return None if carried else min(known, key=lambda x: x.offset, default=None)


def _sum(left: Linear | None, right: Linear | None, sign: int) -> Linear | None:
    if left is None or right is None or (right.element is not None and sign < 0):
        return None
    if left.element is not None and right.element is not None:
        return None
    element = left.element if left.element is not None else right.element
    return Linear(element, left.offset + sign * right.offset)
