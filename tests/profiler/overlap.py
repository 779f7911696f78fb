"""What runs between the start and the done of a collective in a scheduled module."""

from dataclasses import dataclass

from shardwise.profiler.hlo.collectives import CompiledCollective, read_collectives
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.text import Instruction, Module

MATMULS = frozenset({"dot", "convolution"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One asynchronous collective and the instructions scheduled while it is under way."""

    collective: CompiledCollective
    between: tuple[str, ...]
    matmuls: tuple[str, ...]


def read_overlaps(text: str) -> tuple[Overlap, ...]:
    """Every asynchronous collective of a scheduled module with what runs meanwhile, in order."""
    module = read_module(text)
    found = []
    for collective in read_collectives(module):
        if collective.asynchronous:
            inside = _between(module, collective)
            matmuls = tuple(i.name for i in inside if _multiplies(module, i))
            names = tuple(i.name for i in inside)
            found.append(Overlap(collective=collective, between=names, matmuls=matmuls))
    return tuple(found)


def _between(module: Module, collective: CompiledCollective) -> tuple[Instruction, ...]:
    computation = module.computations[collective.computation]
    begin, end = (computation.names.get(n) for n in (collective.name, collective.done))
    if begin is None or end is None:
        return ()
    return computation.instructions[computation.place(begin) + 1 : computation.place(end)]


def _multiplies(module: Module, instruction: Instruction) -> bool:
    """Whether it is a matmul or runs one."""
    return instruction.opcode in MATMULS or any(
        inner.opcode in MATMULS
        for name in instruction.called
        for computation in module.reached(name)
        for inner in computation.instructions
    )
