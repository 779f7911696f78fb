"""Whether an op gives an array another order of dims in memory, alone or beside its work,
and whether a value is only moved until it leaves the program."""

from collections.abc import Iterator

from shardwise.profiler.explain.evidence import HANDS_ON, Evidence
from shardwise.profiler.explain.flow import inside
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow

PLAIN = frozenset({"parameter", "bitcast", "copy", "transpose", "reshape"})
MOVES = (*HANDS_ON, "transpose", "reshape", "tuple", "concatenate")
"""Opcodes that hand an array on, laid out anew or beside others."""
FARTHEST = 500
"""Values that are followed to where they leave the program."""


def relays(e: Evidence, row: OpRow) -> bool:
    """Whether an op does nothing but give an array another order of dims in memory."""
    return turns(e, row) and all(i.opcode in PLAIN for _, i in steps(e, row))


def turns(e: Evidence, row: OpRow) -> bool:
    """Whether an op gives an array another order of dims in memory, whatever else it does to it."""
    if row.op.op.op_class == "matmul" or row.op.asynchronous:
        return False
    return any(_turns(c, i) for c, i in steps(e, row))


def steps(e: Evidence, row: OpRow) -> Iterator[tuple[Computation, Instruction]]:
    """An op's instruction, or all that its fusion runs."""
    computation, found = e.located(row.op)
    return inside(e.module, computation, found) if found is not None else iter(())


def _turns(computation: Computation, found: Instruction) -> bool:
    """A copy between orders of dims, or a transpose that is no mere change of names."""
    if found.opcode not in ("copy", "transpose"):
        return False
    old, new = (next(arrays(computation.shape_of(n))) for n in (found.operands[0], found.name))
    order = old.layout.order
    if found.opcode == "transpose":  # where each dim of the old array is in the new one
        at = {dim: i for i, dim in enumerate(found.integers("dimensions"))}
        order = tuple(at[dim] for dim in order)
    return order != new.layout.order


def only_leaves(computation: Computation, name: str) -> bool:
    """Whether a value is only moved until it leaves the program."""
    waiting, seen = [name], set()
    while waiting:
        value = waiting.pop()
        readers = computation.readers(value)
        if not readers and computation.root.name != value:
            return False
        for i in readers:
            moves = i.opcode in MOVES or i.opcode.endswith("-done") or _only_moves(i)
            if not moves or len(seen) > FARTHEST:
                return False
            if i.name not in seen:
                seen.add(i.name)
                waiting.append(i.name)
    return True


def _only_moves(found: Instruction) -> bool:
    """A fusion that the compiler named after what it does: copies alone."""
    return found.opcode == "fusion" and found.name.startswith(("copy", "bitcast", "transpose"))
