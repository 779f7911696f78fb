"""Questions to the flow of values: over which axes they differ, which arguments they are pieces
of, which they are elementwise functions of, whether they are ones and zeros, and which rows of each
group are kept."""

import re
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from shardwise.profiler.explain.flow import NOTHING, Facts, Flow
from shardwise.profiler.hlo.groups import mesh_axes, read_groups
from shardwise.profiler.hlo.rules import FREE_CALLS, rule
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction, Module
from shardwise.sharding.mesh import Mesh

OWN = frozenset({"partition-id", "replica-id", "recv", "infeed", "rng", "ragged-all-to-all"})
"""Opcodes whose value may be another on every device."""
WRITES = frozenset({"dynamic-update-slice", "scatter"})
"""Opcodes that write a part of their first operand."""
PIECES = frozenset(
    (
        *("bitcast", "reshape", "copy", "copy-start", "convert", "transpose", "slice", "tuple"),
        *("dynamic-slice", "bitcast-convert", "concatenate", "pad", "all-gather"),
        *("all-gather-start", "all-to-all", "all-to-all-start", "collective-permute"),
        *("collective-permute-start", "opt-barrier"),
    )
)
"""Opcodes whose result is made of the numbers of their operands, and of nothing computed."""
WHOLE = frozenset({"bitcast", "copy", "convert", "slice", "concatenate"})
"""Opcodes that change no number; what was sliced is put together again (as copies ahead are)."""
MOVED_ONES = PIECES | {"broadcast"}


def spread(module: Module, mesh: Mesh, cuts: Mapping[int, frozenset[str]]) -> Flow:
    """The mesh axes over which each value differs: along the others every device has the same.

    `cuts` are the axes that cut each argument of the entry; one that it lacks may differ anywhere.
    """
    every = frozenset(axis for axis in mesh if mesh[axis] > 1)

    def rules(c: Computation, found: Instruction, given: Sequence[Facts]) -> Facts:
        axes = NOTHING.union(*given)
        if found.opcode in OWN:
            return every
        if found.opcode == "dynamic-slice" and (table := _by_device(c, found, mesh)) is not None:
            return table
        if rule(found.opcode) != "collective":
            return axes
        return _exchanged(found, axes, module.devices, mesh)

    count = len(module.computation(module.entry).parameters)
    return Flow(module, rules, [cuts.get(at, every) for at in range(count)])


def _by_device(c: Computation, found: Instruction, mesh: Mesh) -> Facts | None:
    """The axes over which a number differs that each device takes of a constant table by its own
    number, in the order of the mesh; None of other values."""
    table, place = (_before(c, name, TAKEN) for name in found.operands[:2])
    if table is None or place is None or (table.opcode, place.opcode) != ("constant", PLACE):
        return None
    numbers = _NUMBER.findall(table.literal)
    if len(numbers) != mesh.size:
        return None
    lying = np.array(numbers, dtype=np.int64).reshape(tuple(mesh.values()))
    return frozenset(a for i, a in enumerate(mesh) if np.any(np.diff(lying, axis=i)))


TAKEN = ("bitcast", "reshape", "copy", "copy-start", "copy-done", "convert")
"""Opcodes through which a table and the number of a device are handed to where it is read."""
PLACE = "partition-id"
_NUMBER = re.compile(r"-?\d+")


def _exchanged(found: Instruction, axes: Facts, devices: int, mesh: Mesh) -> Facts:
    """Of what was gathered or summed all have the same; what was scattered differs."""
    if "permute" in found.opcode:
        return axes | {axis for axis in mesh if mesh[axis] > 1}
    over, whole = mesh_axes(read_groups(found.attribute("replica_groups"), devices), mesh)
    same = found.opcode.startswith(("all-gather", "all-reduce")) and whole
    return axes - set(over) if same else axes | set(over)


def lineage(module: Module) -> Flow:
    """(argument, whether a part of it was written) of the arguments that a value is a copy or a
    piece of; none of what was computed."""

    def rules(_: Computation, found: Instruction, given: Sequence[Facts]) -> Facts:
        if found.opcode in WRITES:
            written = frozenset((number, True) for number, _ in given[0])
            return written | (given[1] if found.opcode == "dynamic-update-slice" else NOTHING)
        if found.opcode == "select":
            return frozenset((number, True) for facts in given[1:] for number, _ in facts)
        if found.opcode in PIECES or found.target in FREE_CALLS:
            return NOTHING.union(*given)
        return NOTHING

    count = len(module.computation(module.entry).parameters)
    return Flow(module, rules, [frozenset({(at, False)}) for at in range(count)])


def renewal(module: Module) -> Flow:
    """The arguments that a value is an elementwise function of, number by number."""

    def rules(_: Computation, found: Instruction, given: Sequence[Facts]) -> Facts:
        kept = rule(found.opcode) == "elementwise" or found.opcode in WHOLE
        return NOTHING.union(*given) if kept or found.target in FREE_CALLS else NOTHING

    count = len(module.computation(module.entry).parameters)
    return Flow(module, rules, [frozenset({at}) for at in range(count)])


def ones(module: Module) -> Flow:
    """ "iota" of what counts up, "one" of what is 1 where a number equals its place, else 0."""

    def rules(computation: Computation, found: Instruction, given: Sequence[Facts]) -> Facts:
        facts = NOTHING.union(*given)
        if found.opcode == "iota":
            return frozenset({"iota"})
        if found.opcode == "compare":
            equal = found.attribute("direction") == "EQ" and "iota" in facts
            return frozenset({"one"}) if equal else NOTHING
        if found.opcode == "select":
            plain = all(constant(computation, name) for name in found.operands[1:])
            return given[0] & {"one"} if plain else NOTHING
        return facts if found.opcode in MOVED_ONES else NOTHING

    count = len(module.computation(module.entry).parameters)
    return Flow(module, rules, [NOTHING] * count)


def constant(computation: Computation, name: str) -> bool:
    """Whether a value is one number that the program has written down."""
    found = computation.find(name)
    while found is not None and found.opcode in ("broadcast", "bitcast", "convert"):
        found = computation.find(found.operands[0])
    return found is not None and found.opcode == "constant"


def groups_kept(computation: Computation, found: Instruction) -> int:
    """Into how many copies of the same rows a select writes zeros but for the rows of one group
    each: those between an end of a group and the next; 0 of others."""
    if found.opcode != "select" or not constant(computation, found.operands[2]):
        return 0
    mask = _before(computation, found.operands[0], VIEWS)
    rows = _before(computation, found.operands[1], VIEWS)
    if mask is None or rows is None or (mask.opcode, rows.opcode) != ("and", "broadcast"):
        return 0
    compared = [_before(computation, n, VIEWS) for n in mask.operands]
    sides = [n for i in compared if i is not None and i.opcode == "compare" for n in i.operands]
    found_of = [_before(computation, n, (*VIEWS, "broadcast")) for n in sides]
    bounds = [i for i in found_of if i is not None and i.opcode != "iota"]
    starts = next((i for i in bounds if i.opcode == "concatenate"), None)
    if len(sides) != 4 or len(bounds) != 2 or starts is None or len(starts.operands) != 2:
        return 0
    first, rest = starts.operands
    ends = _before(computation, rest, (*VIEWS, "slice"))
    if not constant(computation, first) or ends not in bounds:
        return 0
    return elements(found) // max(elements(computation.names[rows.operands[0]]), 1)


VIEWS = ("bitcast", "reshape", "copy")
"""Opcodes that show the same numbers with other dims."""


def _before(computation: Computation, name: str, through: Sequence[str]) -> Instruction | None:
    found = computation.find(name)
    while found is not None and found.opcode in through:
        found = computation.find(found.operands[0])
    return found


def elements(found: Instruction) -> int:
    """Elements of the largest array that an instruction makes."""
    return max((prod(a.dims) for a in arrays(found.shape)), default=0)


def largest_bytes(found: Instruction) -> float:
    """Bytes of the largest array that an instruction makes."""
    return max((a.bytes for a in arrays(found.shape)), default=0.0)
