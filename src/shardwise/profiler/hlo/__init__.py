"""Reading compiled HLO text: modules, shapes, device groups and the collectives in them. No JAX.

`text.py` splits a module into computations and instructions, `shapes.py` and `groups.py` read their
parts, `collectives.py` makes the list of collectives with V in bytes as in `work.Collective`, and
`overlap.py` says what runs between a start and its done, `dots.py` lists matmuls. Time is not read
here. Read `collectives.py` first.
"""

from shardwise.profiler.hlo.collectives import (
    CompiledCollective,
    at_dtype,
    on_mesh,
    read_collectives,
)
from shardwise.profiler.hlo.dots import read_matmuls
from shardwise.profiler.hlo.groups import MeshAxes, mesh_axes, read_groups, read_pairs
from shardwise.profiler.hlo.overlap import Overlap, read_overlaps
from shardwise.profiler.hlo.shapes import Array, arrays, read_shape
from shardwise.profiler.hlo.text import Computation, Instruction, Module, read_module

__all__ = [
    "Array",
    "CompiledCollective",
    "Computation",
    "Instruction",
    "MeshAxes",
    "Module",
    "Overlap",
    "arrays",
    "at_dtype",
    "mesh_axes",
    "on_mesh",
    "read_collectives",
    "read_groups",
    "read_matmuls",
    "read_module",
    "read_overlaps",
    "read_pairs",
    "read_shape",
]
