"""What is known of every value of a program, carried from its arguments through all it calls.

A fact of a value is a set of words: the mesh axes over which it differs (`spread.py`), the
arguments that it is a copy of (`lineage.py`). A rule makes the facts of a result from those of the
operands; this file walks fusions, calls, branches and loops, whose bodies are walked until what
goes round no longer changes. A tuple has facts for each part.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

from shardwise.profiler.hlo.text import Computation, Instruction, Module

Facts = frozenset[Any]
Value = Facts | tuple["Value", ...]
"""Facts of one array, or of each part of a tuple; of a tuple they stand for all parts."""
FlowRule = Callable[[Computation, Instruction, Sequence[Facts]], Facts]
NOTHING: Facts = frozenset()
MOST_ROUNDS = 50
"""Of one loop; a fact moves on by a part of the carried tuple in each."""
HANDED = frozenset(
    (
        *("bitcast", "copy", "copy-start", "opt-barrier", "get-tuple-element", "tuple"),
        *("copy-done", "async-done", "async-update", "all-gather-done", "all-reduce-done"),
        *("reduce-scatter-done", "all-to-all-done", "collective-permute-done"),
        *("ragged-all-to-all-done",),
    )
)
"""Opcodes whose result has the facts of their operands, whatever they are facts of."""


class Flow:
    """Facts of every value: `flow.facts(computation, name)` after `Flow(module, rule, given)`.

    `given` are those of the entry's parameters, in their order.
    """

    def __init__(self, module: Module, rule: FlowRule, given: Sequence[Facts]) -> None:
        self.module = module
        self.rule = rule
        self.values: dict[tuple[str, str], Value] = {}
        self.result = self._run(module.entry, given)

    def facts(self, computation: str, name: str) -> Facts:
        """Of one value, all its parts together; of one that nothing reaches, none."""
        return together(self.values.get((computation, name), NOTHING))

    def _run(self, name: str, given: Sequence[Value]) -> Value:
        """The value of a computation whose parameters have these."""
        computation = self.module.computation(name)
        for parameter in computation.parameters:
            at = int(parameter.literal)
            self._keep(computation, parameter, given[at] if at < len(given) else NOTHING)
        for i in computation.instructions:
            if i.opcode != "parameter":
                self._keep(computation, i, self._value(computation, i))
        return self.values[name, computation.root.name]

    def _keep(self, computation: Computation, found: Instruction, value: Value) -> None:
        """What runs in two places has the facts of both."""
        key = computation.name, found.name
        self.values[key] = joined(self.values.get(key, NOTHING), value)

    def _value(self, computation: Computation, found: Instruction) -> Value:
        given = [self.values.get((computation.name, name), NOTHING) for name in found.operands]
        if found.opcode == "tuple":
            return tuple(given)
        if found.opcode == "get-tuple-element":
            return _part(given[0], int(found.attribute("index")))
        if found.opcode == "while":
            return self._loop(found, given[0])
        if found.opcode == "conditional":
            runs = zip(found.called, given[1:], strict=False)
            return reduce(joined, [self._run(name, [value]) for name, value in runs], NOTHING)
        if found.opcode in ("fusion", "call", "async-start") and found.called:
            return self._run(found.called[0], given)
        if found.opcode in HANDED and len(given) == 1:
            return given[0]
        return self.rule(computation, found, [together(value) for value in given])

    def _loop(self, found: Instruction, value: Value) -> Value:
        condition, body = (found.attribute(key).lstrip("%") for key in ("condition", "body"))
        for _ in range(MOST_ROUNDS):
            self._run(condition, [value])
            after = joined(value, self._run(body, [value]))
            if after == value:
                break
            value = after
        return value


def joined(a: Value, b: Value) -> Value:
    """The facts of both, part by part where both are tuples of as many parts."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(joined(x, y) for x, y in zip(a, b, strict=True))
    if a == NOTHING:
        return b
    if b == NOTHING:
        return a
    return together(a) | together(b)


def together(value: Value) -> Facts:
    """The facts of all parts."""
    if isinstance(value, tuple):
        return frozenset().union(*(together(part) for part in value))
    return value


def _part(value: Value, index: int) -> Value:
    if isinstance(value, tuple):
        return value[index] if index < len(value) else NOTHING
    return value


def inside(
    module: Module, computation: Computation, found: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """An instruction, or all that its fusion runs."""
    if found.opcode != "fusion":
        yield computation, found
    for name in found.called if found.opcode == "fusion" else ():
        body = module.computation(name)
        for i in body.instructions:
            yield from inside(module, body, i)
