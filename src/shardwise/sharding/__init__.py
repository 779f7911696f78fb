"""Sharding nouns: Mesh, Layout, the book's notation, and what each device holds.

`notation.py` is the grammar, `mesh.py` and `layout.py` are the two values, `local.py` gives shapes,
blocks, copies and bytes. Products are parsed and printed only. No hardware, no time and no JAX
here. Read `layout.py` first.
"""

from shardwise.sharding.layout import Dim, Layout, MatmulExpr, Spec
from shardwise.sharding.local import (
    Padded,
    Sizes,
    block,
    blocks,
    bytes_per_device,
    bytes_total,
    check_mesh,
    copies,
    global_shape,
    local_shape,
    padded,
    parse_sizes,
    shards,
    sizes_of,
)
from shardwise.sharding.mesh import Mesh

__all__ = [
    "Dim",
    "Layout",
    "MatmulExpr",
    "Mesh",
    "Padded",
    "Sizes",
    "Spec",
    "block",
    "blocks",
    "bytes_per_device",
    "bytes_total",
    "check_mesh",
    "copies",
    "global_shape",
    "local_shape",
    "padded",
    "parse_sizes",
    "shards",
    "sizes_of",
]
