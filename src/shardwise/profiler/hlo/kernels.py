"""FLOPs of kernels that carry no estimate of their own: attention on TPUs, by shapes and grid.

A Pallas call is opaque in HLO text. JAX's splash attention, which `runtime/attention/best.py` runs
on TPUs, is known by its kernels' names, `splash_mha_fwd_residuals` and so on
(`get_kernel_name` in jax.experimental.pallas.ops.tpu.splash_attention, JAX 0.10), and so is its
ragged attention to pages, which a server runs (`runtime/attention/ragged.py`).
"""

import re
from math import prod
from typing import NamedTuple

from shardwise.boundary.numbers import number
from shardwise.profiler.hlo.shapes import Array, arrays
from shardwise.profiler.hlo.text import Computation, Instruction

_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_RAGGED = "ragged_paged_attention"
_PRODUCTS = {"fwd": (1, 1), "dq": (1, 0), "dkv": (2, 2)}
"""Products of [T, S] scores with the H dims of queries and keys, and with the U dims of values:
forward S = Q K', O = P V; dq dQ = dS K; dkv S, dP = dO V', dV = P' dO and dK = dS' Q
(FlashAttention-2, algorithm 2). What dq computes again, S and dP, is in the rate of kernels, which
is that of a backward pass of 2.5 times the FLOPs of the forward one (`Chip.efficiency`)."""


class KernelAttention(NamedTuple):
    """What a kernel of attention computes, and the widths of a head's queries and values."""

    flops: float
    head_dims: tuple[int, int]


def attention_of(computation: Computation, call: Instruction) -> KernelAttention | None:
    """What a kernel of attention computes on one device, ragged or splash; None of another call.

    2 T S (h H + u U) FLOPs for each head of each sequence, for the share of the scores that the
    mask leaves: its grid is cut to the longest row of live tiles, and rows are in order, so row i
    has min(i + 1, that) of them, or all where the call has no mask. Those at the ends of what a row
    sees count by half, as rates of kernels are those of the scores that are asked for.
    """
    if (paged := ragged_reads(computation, call)) is not None:
        return paged.attention
    found = _SPLASH.search(call.op_name) or _SPLASH.match(call.name)
    if call.target != "tpu_custom_call" or found is None:
        return None
    given = [a for name in call.operands for a in arrays(computation.shape_of(name))]
    tensors = [a for a in given if a.dtype in ("bf16", "f32", "f16") and len(a.dims) >= 3][:3]
    if len(tensors) < 3:
        return None
    q, k, v = tensors
    keys, values = _PRODUCTS[found[1]]
    scores, (H, U) = prod(q.dims[:-1]) * k.dims[-2], (q.dims[-1], v.dims[-1])
    return KernelAttention(2.0 * scores * (keys * H + values * U) * _live(given), (H, U))


class RaggedReads(NamedTuple):
    """What ragged attention to pages computes, and what it reads of its operand `pages`."""

    attention: KernelAttention
    pages: int
    bytes: float


def ragged_reads(computation: Computation, call: Instruction) -> RaggedReads | None:
    """Of a call of JAX's kernel, where every table is full; None of any other call.

    X tokens of R sequences, whose tables have M pages of S places: a token that decodes sees M S
    places. Blocks of a prompt, of X / R tokens, are taken for one chunk that ends where its table
    ends; each reads all places before its own. A place is a key and a value of H dims for each of K
    heads: 4 N H FLOPs for each token that sees it.
    """
    if call.target != "tpu_custom_call" or _RAGGED not in (call.op_name or call.name):
        return None
    shapes = [list(arrays(computation.shape_of(name))) for name in call.operands]
    if len(shapes) != 7 or not all(len(found) == 1 for found in shapes):
        return None
    _, table, *_, q, pages = (found[0] for found in shapes)
    if (len(table.dims), len(q.dims), len(pages.dims)) != (2, 3, 4):
        return None
    (R, M), (X, N, H), S = table.dims, q.dims, pages.dims[1]
    each = X / max(R, 1)
    whole = float(R * M * S)
    read = whole - min(each * R * (R - 1) / 2, whole / 2) if each > 1 else whole
    place = pages.bytes / max(prod(pages.dims[:2]), 1)
    return RaggedReads(
        KernelAttention(4.0 * each * N * H * read, (H, H)), len(shapes) - 1, read * place
    )


def _live(given: list[Array]) -> float:
    """The share of scores that are asked for, by the first array of the mask, [heads or 1, ...].
    Without places of queries, ids or parts of tiles beside such arrays nothing in a tile is masked:
    the call is of whole blocks, as a ring's are (`runtime/attention/ring_kernel.py`)."""
    whole = [a for a in given if a.dtype.startswith(("int", "uint", "bool", "pred"))]
    grid = next(
        (a.dims[-2:] for a in whole if a.dtype.startswith("int") and len(a.dims) == 3), None
    )
    if grid is None or all(a.dims[-2:] == grid for a in whole):
        return 1.0
    rows, most = max(grid), min(grid)
    # The sum of min(row + 1, most) over all rows, less half a tile at each end of what a row sees.
    tiles = most * (most + 1) / 2 + (rows - most) * most
    return (tiles - rows / 2 - (rows - most) / 2) / rows**2 if rows else 0.0


def stated_flops(call: Instruction) -> float:
    """FLOPs that the author of a kernel gave (`pl.CostEstimate`); 0 where there are none. Raises
    BadRequest for what is no number of FLOPs."""
    if call.opcode != "custom-call":
        return 0.0
    config = call.config.get("custom_call_config", call.config)
    estimate = config.get("cost_estimate", {}) if isinstance(config, dict) else {}
    said = estimate.get("flops", 0) if isinstance(estimate, dict) else 0
    return number(said, "'flops' of its cost estimate", least=0, most=1e30)
