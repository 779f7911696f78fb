"""Matmuls that overlap their communication: each runs inside `jax.shard_map`, over one mesh axis.

Every function multiplies one block while the next is on the wire, by `ppermute`, one hop per step;
`bidirectional` uses both directions of the ring, which needs half the steps. They equal the plain
product with an AllGather before it (`all_gather.py`), or a ReduceScatter (`reduce_scatter.py`) or
AllReduce (`all_reduce.py`) after it. The book cuts D over the axis, the forms with `rows` cut the
tokens, as sequence parallelism does. No weights, no model.
Read `ring.py` first (book 3.4.1 and ch. 10).
"""

from shardwise.runtime.collective_matmul.all_gather import (
    all_gather_matmul,
    all_gather_matmul_bidirectional,
    all_gather_rows,
)
from shardwise.runtime.collective_matmul.all_reduce import (
    matmul_all_reduce,
    matmul_all_reduce_bidirectional,
)
from shardwise.runtime.collective_matmul.reduce_scatter import (
    matmul_reduce_scatter,
    matmul_reduce_scatter_bidirectional,
    reduce_scatter_rows,
)

__all__ = [
    "all_gather_matmul",
    "all_gather_matmul_bidirectional",
    "all_gather_rows",
    "matmul_all_reduce",
    "matmul_all_reduce_bidirectional",
    "matmul_reduce_scatter",
    "matmul_reduce_scatter_bidirectional",
    "reduce_scatter_rows",
]
