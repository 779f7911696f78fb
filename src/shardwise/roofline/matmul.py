"""Rooflines of one matmul [m, k] x [k, n] -> [m, n]: FLOPs, bytes, intensity, critical batch.

The book writes m, k, n as B, D, F. `batch` products of the same dims have a matrix each on both
sides: a distinct weight matrix per row (exercise 1.4) is `batch=B` products with m = 1. All
arguments may be NumPy arrays and broadcast. Sources: book 1.1.2, 1.1.3, 1.2; 2.3 for padding.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.roofline.chip_roofline import Times, comms_seconds, math_seconds
from shardwise.units import dtype_bytes
from shardwise.work import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementBytes:
    """Stored bytes per element of the left operand [m, k], the right one [k, n], the result [m, n].

    In the book left holds activations and right holds weights.
    """

    left: Quantity
    right: Quantity
    result: Quantity

    @classmethod
    def of(cls, *, left: str, right: str, result: str) -> "ElementBytes":
        """From dtype names of `units.DTYPE_BYTES`."""
        return cls(left=dtype_bytes(left), right=dtype_bytes(right), result=dtype_bytes(result))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulBytes:
    """Bytes that a matmul reads and writes, each operand once."""

    read: Quantity
    written: Quantity

    @property
    def total(self) -> Quantity:
        return self.read + self.written


def matmul_flops(m: Quantity, k: Quantity, n: Quantity, *, batch: Quantity = 1) -> Quantity:
    """2mkn per product: a multiply-add counts as two."""
    return 2 * batch * m * k * n


def matmul_flops_exact(m: Quantity, k: Quantity, n: Quantity, *, batch: Quantity = 1) -> Quantity:
    """mn(2k - 1) per product: k multiplications and k - 1 additions per element.

    With m = n = 1 it is the dot product of two vectors of length k.
    """
    return batch * m * n * (2 * k - 1)


def matmul_bytes(
    m: Quantity, k: Quantity, n: Quantity, *, elements: ElementBytes, batch: Quantity = 1
) -> MatmulBytes:
    """Bytes moved when each operand is read once and the result is written once."""
    read = batch * (elements.left * m * k + elements.right * k * n)
    return MatmulBytes(read=read, written=batch * elements.result * m * n)


def matmul_intensity(
    m: Quantity,
    k: Quantity,
    n: Quantity,
    *,
    elements: ElementBytes,
    batch: Quantity = 1,
    exact: bool = False,
) -> Quantity:
    """FLOPs per byte; `exact` counts k - 1 additions instead of k.

    >>> bf16 = ElementBytes.of(left="bf16", right="bf16", result="bf16")
    >>> round(float(matmul_intensity(512, 8192, 8192, elements=bf16)), 1)
    455.1
    """
    count = matmul_flops_exact if exact else matmul_flops
    return count(m, k, n, batch=batch) / matmul_bytes(m, k, n, elements=elements, batch=batch).total


def matmul_times(
    m: Quantity,
    k: Quantity,
    n: Quantity,
    *,
    elements: ElementBytes,
    peak_flops: Quantity,
    bandwidth: Quantity,
    batch: Quantity = 1,
) -> Times:
    """T_math and T_comms against HBM at peak rates; `lower` is their max, `upper` their sum."""
    moved = matmul_bytes(m, k, n, elements=elements, batch=batch).total
    return Times(
        math_seconds=math_seconds(matmul_flops(m, k, n, batch=batch), peak_flops),
        comms_seconds=comms_seconds(moved, bandwidth),
        channel="HBM",
    )


def critical_batch(
    k: Quantity, n: Quantity, *, elements: ElementBytes, intensity: Quantity
) -> Quantity:
    """The m at which the matmul's intensity equals `intensity`, all three operands counted.

    2mkn = I (l mk + r kn + o mn)  =>  m = I r kn / (2kn - I (l k + o n)).
    Infinite where the activations alone keep the intensity below I at any m.
    """
    slope = np.asarray(2.0 * k * n - intensity * (elements.left * k + elements.result * n))
    weights = intensity * elements.right * k * n
    return np.where(slope > 0, weights / np.where(slope > 0, slope, 1.0), np.inf)[()]


def critical_batch_approx(*, elements: ElementBytes, intensity: Quantity) -> Quantity:
    """The book's rule for m much smaller than k and n, only the weights counted: I r / 2.

    240 on v5e for bf16 on bf16, 120 with int8 weights and bf16 compute.
    """
    return intensity * elements.right / 2


def first_batch_at_peak(
    k: Quantity, n: Quantity, *, elements: ElementBytes, intensity: Quantity
) -> Quantity:
    """The smallest whole m whose intensity reaches `intensity`; infinite if none does."""
    exact = critical_batch(k, n, elements=elements, intensity=intensity)
    # A critical batch that is whole may come out a rounding error above itself.
    return np.ceil(exact * (1 - 1e-12))


def tile_intensity(bm: Quantity, bn: Quantity, *, elements: ElementBytes) -> Quantity:
    """Intensity of a tiled matmul with output tiles bm x bn, the write-back left out.

    Each step over k reads a strip of both operands: 2 bm bn / (l bm + r bn), which for bf16 is
    bm bn / (bm + bn) (book 1.1.2, footnote on tiling; errata 1.6).
    """
    return 2 * bm * bn / (elements.left * bm + elements.right * bn)


def padded_flops(
    m: Quantity, k: Quantity, n: Quantity, *, tile: tuple[int, int, int], batch: Quantity = 1
) -> Quantity:
    """FLOPs that the matmul units run once m, k and n are rounded up to the chip's tile (m, k, n).

    >>> float(padded_flops(1, 128, 100, tile=(8, 128, 128))) == 2 * 8 * 128 * 128
    True
    """
    return matmul_flops(*(_up(d, t) for d, t in zip((m, k, n), tile, strict=True)), batch=batch)


def split_contraction_times(
    m: Quantity,
    k: Quantity,
    n: Quantity,
    *,
    chips: Quantity,
    result_bytes: Quantity,
    peak_flops: Quantity,
    oneway: Quantity,
) -> Times:
    """A matmul split over its contracting dim: 1/chips of the math each, then the sums are added.

    `oneway` is what one chip sends in bytes/s. A bandwidth-optimal all-reduce sends
    2 (chips - 1)/chips of the result's bytes from each chip; with two chips that is the exchange of
    whole partial sums of book 1.1.3. The additions are left out.
    """
    sent = 2 * (chips - 1) / chips * result_bytes * m * n
    return Times(
        math_seconds=math_seconds(matmul_flops(m, k, n) / chips, peak_flops),
        comms_seconds=comms_seconds(sent, oneway),
        channel="network",
    )


def split_contraction_threshold(
    *, chips: Quantity, result_bytes: Quantity, peak_flops: Quantity, oneway: Quantity
) -> Quantity:
    """The contracting dim above which `split_contraction_times` is compute-bound.

    k > (chips - 1) x result_bytes x C / W, whatever m and n; 2C/W for two chips and bf16.
    """
    return (chips - 1) * result_bytes * peak_flops / oneway


def _up(dim: Quantity, multiple: int) -> Quantity:
    return np.ceil(np.asarray(dim) / multiple) * multiple
