"""Reading compiled HLO text: modules, shapes, device groups, collectives, and all of it as Work.

`door.py` is where text comes in: it parses, and checks all that the others rely on (`operands.py`
has what each opcode needs). `text.py` splits a module into computations and instructions;
`numbers.py`, `shapes.py` (layouts, tiles, memory spaces), `groups.py`, `sources.py` (files and
lines) and `scopes.py` (named scopes) read their parts; `rules.py` says what every opcode is,
`loops.py` how often loops run, `flops.py` and `traffic.py` what an instruction computes and moves;
`collectives.py` and `transfers.py` make the list of collectives with V in bytes as in
`work.Collective`; `parts.py` says what joined ones are for, `kernels.py` what kernels compute.
`work.py` joins them: `module_work` gives the schedule as ops. `dots.py` lists matmuls. No JAX, and
no time: `profiler/timeline.py` has that. Read `work.py` first.
"""

from shardwise.profiler.hlo.collectives import (
    CompiledCollective,
    at_dtype,
    on_mesh,
    read_collectives,
)
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.dots import read_matmuls
from shardwise.profiler.hlo.groups import mesh_axes, read_groups, read_pairs, recover_mesh
from shardwise.profiler.hlo.loops import trip_counts
from shardwise.profiler.hlo.rules import rule
from shardwise.profiler.hlo.shapes import MemoryLayout, arrays, read_shape
from shardwise.profiler.hlo.text import Instruction, Module
from shardwise.profiler.hlo.work import HloOp, Nested, Wait, module_work

__all__ = [
    "CompiledCollective",
    "HloOp",
    "Instruction",
    "MemoryLayout",
    "Module",
    "Nested",
    "Wait",
    "arrays",
    "at_dtype",
    "mesh_axes",
    "module_work",
    "on_mesh",
    "read_collectives",
    "read_groups",
    "read_matmuls",
    "read_module",
    "read_pairs",
    "read_shape",
    "recover_mesh",
    "rule",
    "trip_counts",
]
