"""A program without what its barriers leave once it is compiled: on GPUs tuples that are made and
taken apart again, behind which a rule would not find what a value is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardwise.profiler.hlo.text import Computation, Instruction, Module


def without_barriers(module: Module) -> Module:
    """The module with the parts of such tuples as other names of what they are."""
    made = {
        name: Computation(name=name, instructions=parts, line=c.line) if changed else c
        for name, c in module.computations.items()
        for parts in (tuple(_parts(c.instructions)),)
        for changed in (parts != c.instructions,)
    }
    return replace(module, computations=made)


def _parts(body: Sequence[Instruction]) -> Iterator[Instruction]:
    """Parts of a tuple that is made beside them, as other names of what they are: what a barrier
    kept apart leaves on GPUs. A tuple that nothing else reads goes."""
    made = {i.name: i for i in body if i.opcode == "tuple"}
    taken = {i.name: n for i in body if (n := _part_of(i, made))}
    read = {n for i in body if i.name not in taken for n in i.operands}
    left = {i.operands[0] for i in body if i.name in taken}
    for i in body:
        if i.name in taken:
            yield replace(i, opcode="bitcast", operands=(taken[i.name],))
        elif i.name not in left or i.name in read or i.root:
            yield i


def _part_of(found: Instruction, made: Mapping[str, Instruction]) -> str:
    """What a part of a tuple is, where the tuple is among those that are made; else empty."""
    given = made.get(found.operands[0]) if found.operands else None
    at = found.attribute("index")
    barrier = found.op_name.endswith("/optimization_barrier")
    if found.opcode != "get-tuple-element" or not barrier or given is None or not at.isdigit():
        return ""
    return given.operands[int(at)] if int(at) < len(given.operands) else ""
