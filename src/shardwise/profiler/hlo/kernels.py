"""FLOPs of kernels that carry no estimate of their own: attention, by shapes and grid or mask.

A Pallas call is opaque in HLO text. JAX's splash attention, which `runtime/attention/best.py` runs
on TPUs, is known by its kernels' names, `splash_mha_fwd_residuals` and so on
(`get_kernel_name` in jax.experimental.pallas.ops.tpu.splash_attention, JAX 0.10), and so is its
ragged attention to pages, which a server runs (`runtime/attention/ragged.py`). Ours states what it
computes and reads. cuDNN's attention on GPUs is a custom call whose backend config has its mask.
"""

import re
from math import prod
from typing import NamedTuple

from shardwise.boundary.numbers import number
from shardwise.profiler.hlo.numbers import integer
from shardwise.profiler.hlo.shapes import Array, arrays
from shardwise.profiler.hlo.text import Computation, Instruction

_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_KEYS = re.compile(r"\bkeys_(\d{1,9})\b")
_RAGGED = "ragged_paged_attention"
_PAGED = "paged_softmax"
_TRITON = "__gpu$xla.gpu.triton"
_TRITON_PAGED = re.compile(r"paged_softmax_(\d+)x(\d+)_of_(\d+)_(\d+)")
_PRODUCTS = {"fwd": (1, 1), "dq": (1, 0), "dkv": (2, 2)}
"""Products of [T, S] scores with the H dims of queries and keys, and with the U dims of values:
forward S = Q K', O = P V; dq dQ = dS K; dkv S, dP = dO V', dV = P' dO and dK = dS' Q
(FlashAttention-2, algorithm 2). What dq computes again, S and dP, is in the rate of kernels, which
is that of a backward pass of 2.5 times the FLOPs of the forward one (`Chip.efficiency`)."""


CUDNN_ATTENTION = {"__cudnn$fmhaSoftmax": (1, 1), "__cudnn$fmhaSoftmaxBackward": (3, 2)}
"""The same products of cuDNN's calls by their targets; the backward one makes dQ, dK and dV."""


class KernelAttention(NamedTuple):
    """What a kernel of attention computes, and the widths of a head's queries and values."""

    flops: float
    head_dims: tuple[int, int]


def attention_of(computation: Computation, call: Instruction) -> KernelAttention | None:
    """What a kernel of attention computes on one device: ragged, cuDNN's or splash; None of another
    call.

    2 T S (h H + u U) FLOPs for each head of each sequence, for the share of the scores that the
    mask leaves: its grid is cut to the longest row of live tiles, and rows are in order, so row i
    has min(i + 1, that) of them, or all where the call has no mask. Those at the ends of what a row
    sees count by half, as rates of kernels are those of the scores that are asked for. Where a
    device has a part of the rows, or of chunks, a scope around the call says how many a query sees.
    """
    if (paged := paged_reads(computation, call)) is not None:
        return paged.attention
    if call.target in CUDNN_ATTENTION:
        return _cudnn(computation, call)
    found = _SPLASH.search(call.op_name) or _SPLASH.match(call.name)
    if call.target != "tpu_custom_call" or found is None:
        return None
    given = [a for name in call.operands for a in arrays(computation.shape_of(name))]
    tensors = [a for a in given if a.dtype in ("bf16", "f32", "f16") and len(a.dims) >= 3][:3]
    if len(tensors) < 3:
        return None
    q, k, v = tensors
    keys, values = _PRODUCTS[found[1]]
    (H, U), said = (q.dims[-1], v.dims[-1]), _KEYS.search(call.op_name)
    seen = integer(said[1], "keys of a query", most=2**31) if said else k.dims[-2] * _live(given)
    return KernelAttention(2.0 * prod(q.dims[:-1]) * seen * (keys * H + values * U), (H, U))


def _cudnn(computation: Computation, call: Instruction) -> KernelAttention | None:
    """Of a call of cuDNN's attention, q[B, T, N, H], k[B, S, K, H], v[B, S, K, U]: T S scores for
    each head of each sequence, of which a causal mask leaves those of row i and before, and a
    window of w the last w of them."""
    given = [a for name in call.operands[:3] for a in arrays(computation.shape_of(name))]
    if len(given) != 3 or not all(len(a.dims) == 4 for a in given):
        return None
    (B, T, N, H), S, U = given[0].dims, given[1].dims[1], given[2].dims[3]
    config = call.config.get("cudnn_fmha_backend_config")
    config = config if isinstance(config, dict) else {}
    window = integer(str(config.get("sliding_window_length", 0)), "a sliding window", most=2**31)
    pairs = float(T * S)
    if "CAUSAL" in str(config.get("mask_type", "")):
        seen = min(window or S, S)  # of the last row; row i of T sees min(i + 1, seen)
        first = min(T, seen)
        pairs = first * (first + 1) / 2 + (T - first) * seen
    keys, values = CUDNN_ATTENTION[call.target]
    return KernelAttention(2.0 * B * N * pairs * (keys * H + values * U), (H, U))


class RaggedReads(NamedTuple):
    """What attention to pages computes, and the bytes that it reads of its operands `pages`."""

    attention: KernelAttention
    pages: tuple[int, ...]
    bytes: float


def paged_reads(computation: Computation, call: Instruction) -> RaggedReads | None:
    """Of a call of JAX's kernel of ragged pages, or of one of ours; None of any other call."""
    if call.target == _TRITON:
        return _triton_reads(computation, call)
    if call.target != "tpu_custom_call":
        return None
    if _PAGED in (call.op_name or call.name):
        return _stated_reads(computation, call)
    return ragged_reads(computation, call)


def _stated_reads(computation: Computation, call: Instruction) -> RaggedReads | None:
    """Our kernel (`runtime/attention/paged_softmax.py`) states what it computes and reads: after
    numbers come queries [R, J, rows, H], then pages [L, P, S, X], those of a block one by one."""
    shapes = [list(arrays(computation.shape_of(name))) for name in call.operands]
    tall = [i for i, found in enumerate(shapes) if len(found) == 1 and len(found[0].dims) == 4]
    read = _stated(call, "bytes_accessed")
    if len(tall) < 2 or not read:
        return None
    (queries, *pages), outs = tall, list(arrays(call.shape))
    widths = (shapes[queries][0].dims[-1], outs[0].dims[-1] if outs else 0)
    return RaggedReads(KernelAttention(stated_flops(call), widths), tuple(pages), read)


def _triton_reads(computation: Computation, call: Instruction) -> RaggedReads | None:
    """Our kernel for GPUs (`runtime/attention/paged_triton.py`), where every table is full. Its
    name has the Q tokens and G heads that read a KV head, and the widths H and U; the table is the
    operand [R, M], pages are those [L, P, S, K H] and [L, P, S, K U]. Blocks of a prompt are taken
    for one chunk that ends where its table ends."""
    named = _TRITON_PAGED.search(call.op_name or call.name)
    shapes = [list(arrays(computation.shape_of(name))) for name in call.operands]
    if named is None or len(shapes) < 6 or not all(len(found) == 1 for found in shapes):
        return None
    Q, G, H, U = (integer(x, "a width of a kernel", most=2**31) for x in named.groups())
    (q,), _, _, (table,), *pages = shapes[:6]
    if (len(q.dims), len(table.dims)) != (4, 2) or any(len(p.dims) != 4 for (p,) in pages):
        return None
    (R, M), K = table.dims, q.dims[1]
    whole = float(R * M * pages[0][0].dims[2])
    seen = whole - min(Q * R * (R - 1) / 2, whole / 2) if Q > 1 else whole
    place = sum(p.bytes / max(prod(p.dims[:3]), 1) for (p,) in pages)
    flops = 2.0 * Q * G * K * (H + U) * seen
    return RaggedReads(KernelAttention(flops, (H, U)), (4, 5), seen * place)


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
        KernelAttention(4.0 * each * N * H * read, (H, H)), (len(shapes) - 1,), read * place
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
    BadRequest for what is not a number of FLOPs."""
    return _stated(call, "flops")


def _stated(call: Instruction, name: str) -> float:
    if call.opcode != "custom-call":
        return 0.0
    config = call.config.get("custom_call_config", call.config)
    estimate = config.get("cost_estimate", {}) if isinstance(config, dict) else {}
    said = estimate.get(name, 0) if isinstance(estimate, dict) else 0
    return number(said, f"'{name}' of its cost estimate", least=0, most=1e30)
