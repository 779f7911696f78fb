"""Figures of the first chapters as data: matmuls against the roofline, and what speculation brings.

They are the deck's first practical too: intensity of matmuls of several sizes, and which of them
reach the peak.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.book.figures import Figure, Series
from shardwise.book.seed import book_chip
from shardwise.roofline.chip_roofline import (
    CHANNELS,
    attainable_flops,
    level_bandwidth,
    level_named,
)
from shardwise.roofline.matmul import (
    ElementBytes,
    first_batch_at_peak,
    matmul_bytes,
    matmul_flops,
    matmul_intensity,
)
from shardwise.scheduling import Speculation

SIZES = (64, 256, 1024, 4096, 16384)
"""Sides of the square products that are set on the roofline."""


def roofline_sizes(
    chip: str = "v5e", dtype: str = "bf16", level: str = "hbm", sizes: Sequence[int] = SIZES
) -> Figure:
    """Square products on the roofline of a chip, by their size: n / 3 FLOPs per byte in bf16."""
    found, name = book_chip(chip), CHANNELS[level_named(level)]
    peak, bandwidth = found.peak(dtype), level_bandwidth(found, level)
    elements = ElementBytes.of(left=dtype, right=dtype, result=dtype)
    sides = np.array(sorted(set(sizes)), float)
    at = np.asarray(matmul_intensity(sides, sides, sides, elements=elements))
    critical = peak / bandwidth
    x = np.geomspace(min(at[0], critical) / 4, max(at[-1], critical) * 4, 64)
    return Figure(
        id="fig.1.roofline",
        chapter="1",
        title=f"Square {dtype} products on the roofline of {found.id}, operands from {name}",
        source="ch. 1.1, figure of the roofline; deck, first practical",
        x_label="intensity",
        x_unit="FLOP/byte",
        y_label="attainable",
        y_unit="FLOP/s",
        log="xy",
        series=(
            _series("roof", x, attainable_flops(x, peak, bandwidth)),
            _series("square products", at, attainable_flops(at, peak, bandwidth)),
        ),
        readings={
            "critical_intensity": critical,
            **{f"intensity.{n:.0f}": float(i) for n, i in zip(sides, at, strict=True)},
        },
    )


def batch_knees(
    chip: str = "v5e",
    weights: str = "int8",
    dtype: str = "bf16",
    widths: Sequence[int] = (4096, 1024),
    most: int = 512,
) -> Figure:
    """FLOP/s of [B, F] x [F, F] with narrow weights against B, for several F: all come to the peak,
    narrow ones later."""
    found = book_chip(chip)
    peak, bandwidth = found.peak(dtype), level_bandwidth(found, "hbm")
    elements = ElementBytes.of(left=dtype, right=weights, result=dtype)
    batch, series, readings = np.arange(1.0, most + 1), [], {}
    for width in widths:
        intensity = matmul_intensity(batch, width, width, elements=elements)
        rate = attainable_flops(intensity, peak, bandwidth)
        series.append(_series(f"F = {width:,}", batch, rate))
        knee = first_batch_at_peak(width, width, elements=elements, intensity=peak / bandwidth)
        if np.isfinite(knee):
            readings[f"first_batch_at_peak.{width}"] = float(knee)
    return Figure(
        id="fig.1.batch",
        chapter="1",
        title=f"{dtype} activations times {weights} weights on {found.id}",
        source="ch. 1, question 3, figure",
        x_label="batch",
        x_unit="tokens",
        y_label="attainable",
        y_unit="FLOP/s",
        log="xy",
        series=tuple(series),
        readings=readings or {"peak": peak},
    )


def matmul_growth(dtype: str = "bf16", most: int = 16384) -> Figure:
    """FLOPs of a square product grow with the cube of its side, its bytes with the square."""
    sides = 2.0 ** np.arange(1, max(int(most).bit_length(), 3))
    elements = ElementBytes.of(left=dtype, right=dtype, result=dtype)
    flops = matmul_flops(sides, sides, sides)
    moved = matmul_bytes(sides, sides, sides, elements=elements).total
    return Figure(
        id="fig.4.matmul",
        chapter="4",
        title=f"FLOPs and bytes of a square product in {dtype}",
        source="ch. 4.1, animation of cubic FLOPs",
        x_label="side",
        x_unit="elements",
        y_label="FLOPs, and bytes",
        y_unit="",
        log="xy",
        series=(_series("FLOPs", sides, flops), _series("bytes", sides, moved)),
        readings={f"flops_per_byte.{sides[-1]:.0f}": float(np.asarray(flops / moved)[-1])},
    )


def speculation(guesses: Sequence[int] = (1, 2, 4, 8)) -> Figure:
    """Tokens per step of speculative decoding against the share of guesses that is accepted, for
    several guesses a step."""
    shares = np.linspace(0, 1, 51)
    series = tuple(
        _series(
            f"{k} guesses" if k > 1 else "1 guess",
            shares,
            np.array([Speculation(tokens=k, acceptance=a).tokens_per_step for a in shares]),
        )
        for k in guesses
    )
    return Figure(
        id="fig.7.speculation",
        chapter="7",
        title="Tokens per step of speculative decoding",
        source="ch. 7, speculative sampling; arXiv 2211.17192, eq. 1",
        x_label="accepted share of guesses",
        x_unit="ratio",
        y_label="tokens per step",
        y_unit="tokens",
        log="",
        series=series,
        readings={f"at_80_percent.{s.label}": s.y[40] for s in series},
    )


def _series(label: str, x: np.ndarray, y: np.ndarray | float) -> Series:
    values = np.broadcast_to(np.asarray(y, float), np.shape(x))
    return Series(label=label, x=tuple(map(float, x)), y=tuple(map(float, values)))
