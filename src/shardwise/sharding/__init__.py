"""The sharding algebra: the book's notation, the shards of each device, and the communication.

`notation.py` is the grammar, `mesh.py` and `layout.py` are the two values, `local.py` gives shapes,
blocks, copies and bytes. `einsum.py` reads products, `steps.py` is what a program is made of,
`reshard.py`, `resolve.py` and `chain.py` find the cheapest program, `bounded.py` keeps that search
small, `lowering.py` puts it into a compiler's collectives, `count.py` counts it, `exchange.py` says
whose block each device gets in a permute, `program_text.py` writes it as JAX source (its
frames lie in `data/`). `backward/` derives backward passes, `simulate/` runs collectives. No
hardware, no time and no JAX here. Read `layout.py` first, then `resolve.py`.
"""

from shardwise.sharding.chain import Resolution, Strategy, distinct, padded_sizes, resolve
from shardwise.sharding.count import count, wire_bytes
from shardwise.sharding.einsum import Einsum
from shardwise.sharding.layout import Dim, Layout, MatmulExpr
from shardwise.sharding.local import (
    Sizes,
    block,
    blocks,
    bytes_per_device,
    bytes_total,
    copies,
    global_shape,
    local_shape,
    padded,
    parse_sizes,
    shards,
    sizes_of,
)
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.reshard import reshard
from shardwise.sharding.resolve import compute_shardings
from shardwise.sharding.steps import Program, ShardStep, group_bytes

__all__ = [
    "Dim",
    "Einsum",
    "Layout",
    "MatmulExpr",
    "Mesh",
    "Program",
    "Resolution",
    "ShardStep",
    "Sizes",
    "Strategy",
    "block",
    "blocks",
    "bytes_per_device",
    "bytes_total",
    "compute_shardings",
    "copies",
    "count",
    "distinct",
    "global_shape",
    "group_bytes",
    "local_shape",
    "padded",
    "padded_sizes",
    "parse_sizes",
    "reshard",
    "resolve",
    "shards",
    "sizes_of",
    "wire_bytes",
]
