"""FLOPs of one instruction, and the product of matrices that it is.

A dot or convolution is 2 x the multiply-adds that touch no padding: XLA writes batched and
transposed products as convolutions over dilated windows, in which most places are holes. FLOPs of
the vector units (elementwise, reductions) are kept apart: they are no product of matrices.
"""

import re
from functools import lru_cache
from math import gcd, log2, prod
from typing import Any

import numpy as np

from shardwise.errors import BadRequest, shown
from shardwise.profiler.hlo.numbers import integer, integers
from shardwise.profiler.hlo.rules import PRODUCT_CALLS, rule
from shardwise.profiler.hlo.shapes import Array, arrays
from shardwise.profiler.hlo.text import Computation, Instruction, Module
from shardwise.work import Matmul

MOST_SIDE = 2**30
"""Of a dim of a convolution, and of a number of its window."""


def multiplies(instruction: Instruction) -> bool:
    """Whether it is a product of matrices, by itself or by a library's call."""
    return rule(instruction.opcode) == "matmul" or instruction.target in PRODUCT_CALLS


def matmul_of(computation: Computation, product: Instruction) -> Matmul:
    """A dot, ragged dot or convolution as `batch` products [m, k] x [k, n] of one device."""
    if product.attribute("dim_labels"):
        return _convolution(computation, product)
    return _dot(computation, product)


def matmul_flops(matmul: Matmul) -> float:
    """2 m k n for each product of the batch."""
    return 2.0 * float(matmul.batch) * float(matmul.m) * float(matmul.k) * float(matmul.n)


def matmul_dtype(computation: Computation, product: Instruction) -> str:
    """The dtype that the product is computed in: the wider of its operands."""
    found = [_given(computation, name) for name in product.operands[:2]]
    return max(found, key=lambda a: a.bytes / max(prod(a.dims), 1)).dtype


def passes(product: Instruction) -> int:
    """bf16 passes of a float32 product on a TPU: `operand_precision` highest 6, high 3, else 1.

    Source: the precisions of jax.lax.Precision; a pass multiplies one pair of bf16 parts.
    """
    precision = product.attribute("operand_precision")
    return 6 if "highest" in precision else 3 if "high" in precision else 1


def vector_flops(module: Module, computation: Computation, instruction: Instruction) -> float:
    """Operations of the vector units, one per element; a fusion is the sum of what it runs, without
    what its slices leave out."""
    kind = rule(instruction.opcode)
    if instruction.opcode == "fusion":
        inside = module.computation(instruction.called[0])
        kept = _kept(inside)
        return sum(
            vector_flops(module, inside, i) * kept.get(i.name, 1.0) for i in inside.instructions
        )
    elements = float(sum(prod(a.dims) for a in arrays(instruction.shape)))
    if kind == "elementwise":
        return elements
    if kind == "reduction":
        inputs = [a for n in instruction.operands[:1] for a in arrays(computation.shape_of(n))]
        window = prod(window_sizes(instruction))
        if instruction.opcode == "reduce":
            return float(sum(prod(a.dims) for a in inputs))
        return elements * window
    if kind == "sort":  # a network of comparisons
        array = next(arrays(instruction.shape))
        along = (*instruction.integers("dimensions"), -1)[0]
        length = array.dims[along] if array.dims else 1
        return prod(array.dims) * max(log2(max(length, 2)), 1.0)
    if kind == "algebra":
        return _algebra(computation, instruction)
    return 0.0


CUTS = ("slice", "dynamic-slice", "gather")
"""Opcodes that read a part of their first operand."""


def _kept(fused: Computation) -> dict[str, float]:
    """The share of each value that a fusion computes, where slices within it leave some out: a
    kernel computes what its result is made of, number by number."""
    if not any(i.opcode in CUTS for i in fused.instructions):
        return {}
    sizes = {i.name: sum(prod(a.dims) for a in arrays(i.shape)) for i in fused.instructions}
    sliced, asked = dict.fromkeys(sizes, 0), {fused.root.name: sizes[fused.root.name]}
    for i in reversed(fused.instructions):
        own = min(max(sliced[i.name], asked.get(i.name, 0)), sizes[i.name])
        asked[i.name] = own
        each = i.opcode in CUTS or rule(i.opcode) in ("elementwise", "movement", "free")
        for at, name in enumerate(n for n in i.operands if n in sizes):
            if i.opcode in CUTS and at == 0:
                sliced[name] += own
            else:
                asked[name] = max(asked.get(name, 0), own if each else sizes[name])
    plain = (i.name for i in fused.instructions if rule(i.opcode) == "elementwise")
    return {name: asked[name] / sizes[name] for name in plain if sizes[name]}


def window_sizes(instruction: Instruction) -> list[int]:
    """The sides of the window of a reduction; none of what has no window. Raises BadRequest."""
    return _window(instruction.attribute("window"), "size")


def _algebra(computation: Computation, instruction: Instruction) -> float:
    array = next(arrays(instruction.shape))
    if instruction.opcode == "fft":  # 5 n log2 n, the radix-2 count
        length = (instruction.integers("fft_length") or (1,))[-1]
        return 5.0 * prod(array.dims) * log2(max(length, 2))
    side = array.dims[-1] if array.dims else 1
    if instruction.opcode == "cholesky":  # n^3 / 3
        return prod(array.dims) * side / 3.0
    matrix = _given(computation, instruction.operands[0])
    return float(prod(array.dims)) * (matrix.dims[-1] if matrix.dims else 1)


def _given(computation: Computation, name: str) -> Array:
    return next(arrays(computation.shape_of(name)))


def _dot(computation: Computation, dot: Instruction) -> Matmul:
    left, right = (_given(computation, name).dims for name in dot.operands[:2])
    batch, contracted, used = _dims(dot)
    named = {"left": (batch + contracted, left), "right": (used, right)}
    for side, (dims, sizes) in named.items():
        if len(set(dims)) < len(dims) or max(dims, default=-1) >= len(sizes):
            raise BadRequest(f"its dims {dims} of the {side} operand are not of its {len(sizes)}")
    return Matmul(
        m=prod(n for i, n in enumerate(left) if i not in batch + contracted),
        k=prod(left[i] for i in contracted),
        n=prod(n for i, n in enumerate(right) if i not in used),
        batch=prod(left[i] for i in batch),
    )


def _dims(dot: Instruction) -> tuple[tuple[int, ...], ...]:
    """Batch and contracted dims of the left operand, and all such dims of the right one."""
    if dot.opcode == "custom-call":
        keys = ("lhs_batch_dimensions", "lhs_contracting_dimensions")
        keys += ("rhs_batch_dimensions", "rhs_contracting_dimensions")
        named: Any = dot.config
        for key in ("gemm_backend_config", "dot_dimension_numbers"):
            named = named.get(key, {}) if isinstance(named, dict) else {}
        found = [_listed(named.get(key, ()), key) for key in keys]
    else:
        keys = ("lhs_batch_dims", "lhs_contracting_dims", "rhs_batch_dims", "rhs_contracting_dims")
        found = [dot.integers(key) for key in keys]
    # A ragged dot sees every group's matrix but multiplies each row by one of them.
    return found[0], found[1], found[2] + found[3] + dot.integers("rhs_group_dims")


def _listed(dims: Any, key: str) -> tuple[int, ...]:
    """A list of a config as numbers: "0" and 0."""
    if not isinstance(dims, list | tuple):
        raise BadRequest(f"'{key}' is {shown(dims)}; it must be a list of dims")
    return tuple(integer(str(n), key) for n in dims)


def _convolution(computation: Computation, conv: Instruction) -> Matmul:
    """Output positions x output features by what each of them adds up.

    A window dim in which every output sees one input is a batch dim, or where there is but one
    input for all one more dim of the right operand; the others add to k.
    """
    ins, kernels, outs = labels_of(computation, conv)
    left, right = (_given(computation, name).dims for name in conv.operands[:2])
    out = next(arrays(conv.shape)).dims
    groups = _count(conv, "feature_group_count")
    window = _windows(conv, sum(at.isdigit() for at in kernels))
    m, k, batch = out[outs.index("b")], right[kernels.index("i")], groups
    n = out[outs.index("f")] // groups
    for at, places in enumerate(window):
        size, kernel = out[outs.index(str(at))], right[kernels.index(str(at))]
        inputs = left[ins.index(str(at))]
        pairs = _pairs(inputs, kernel, size, *places)
        if pairs == size and kernel > 1 and inputs > 1:
            batch *= size
        elif pairs == size and kernel > 1:  # heads: all see the same left operand
            n *= size
        else:
            m *= size
            k *= pairs / max(size, 1)
    return Matmul(m=m, k=k / _count(conv, "batch_group_count"), n=n, batch=batch)


def _count(conv: Instruction, key: str) -> int:
    return integer(conv.attribute(key) or "1", key, least=1)


def labels_of(computation: Computation, conv: Instruction) -> list[str]:
    """The dims of a convolution's operands and result, a letter or digit each, `b01f_01io->b01f`.
    Raises BadRequest where they are not those of the shapes."""
    text = conv.attribute("dim_labels")
    labels = re.split(r"_|->", text)
    shapes = [computation.shape_of(name) for name in conv.operands[:2]] + [conv.shape]
    dims = [next(arrays(shape)).dims for shape in shapes]
    places = "".join(sorted(mark for mark in labels[0] if mark.isdigit()))
    wanted = [sorted(f"{places}{letters}") for letters in ("bf", "io", "bf")]
    sides = max((side for sizes in dims for side in sizes), default=0)
    if (
        [sorted(label) for label in labels] != wanted
        or places != "0123456789"[: len(places)]
        or [len(label) for label in labels] != [len(sizes) for sizes in dims]
        or (places and sides > MOST_SIDE)
    ):
        raise BadRequest(
            f"'dim_labels' {shown(text)} do not name each dim of its shapes once, or a dim has "
            f"more than {MOST_SIDE} places"
        )
    return labels


def _windows(conv: Instruction, dims: int) -> list[tuple[int, int, int, int]]:
    """Stride, low padding, dilation of the input and of the window, for each dim."""
    text = conv.attribute("window")
    pads = re.search(r"\bpad=([\d_x\-]+)", text)
    lows = [0] * dims
    if pads:
        what = "'pad' of a window"
        words = [pad.split("_")[0] for pad in pads[1].split("x")]
        lows = [integer(word, what, least=-MOST_SIDE, most=MOST_SIDE) for word in words]
    columns = [_window(text, key) or [1] * dims for key in ("stride", "lhs_dilate", "rhs_dilate")]
    if any(len(column) != dims for column in (*columns, lows)):
        raise BadRequest(f"window {shown(text)} is not of the {dims} dims of 'dim_labels'")
    return [(columns[0][i], lows[i], columns[1][i], columns[2][i]) for i in range(dims)]


def _window(text: str, key: str) -> list[int]:
    found = re.search(rf"\b{key}=([\dx]+)", text)
    if found is None:
        return []
    return list(integers(found[1], f"'{key}' of a window", least=1, most=MOST_SIDE, between="x"))


MOST_PLACES = 2**20
"""Places of a kernel, or of the output where these are fewer, that are looked at one by one."""


@lru_cache(maxsize=4096)
def _pairs(
    inputs: int, kernel: int, outputs: int, stride: int, low: int, dilate: int, spread: int
) -> int:
    """Pairs (output, place in the kernel) that meet an input and neither padding nor a hole.

    Output o and place p look at o stride + p spread - low, in which they are alike: the one that
    has fewer is gone through, the other counted. That is an input where it is a multiple of
    `dilate` from 0 to (inputs - 1) dilate.
    """
    if dilate == 1 and spread == 1 and stride == 1 and kernel == 1 and low == 0:
        return min(inputs, outputs)
    if kernel > outputs:
        return _pairs(inputs, outputs, kernel, spread, low, dilate, stride)
    if kernel > MOST_PLACES:
        raise BadRequest(f"a window of {kernel} places is too large to be counted")
    offset = np.arange(kernel, dtype=np.int64) * spread - low
    first = np.maximum(0, -(offset // stride))
    last = np.minimum(outputs - 1, ((inputs - 1) * dilate - offset) // stride)
    # o stride = -offset (mod dilate) has one solution modulo `period`, or none.
    common = gcd(stride, dilate)
    period = dilate // common
    solution = -(offset // common) % period * pow(stride // common, -1, period) % period
    first += (solution - first) % period
    rounds = np.maximum(0, (last - first) // period + 1)
    return int(rounds[offset % common == 0].sum())
