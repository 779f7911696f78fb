"""The roofline of one chip: attainable FLOP/s against intensity, and where the two bounds meet.

Works on plain numbers or arrays; the last functions take them from a Chip. Source: book 1.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.errors import check_known
from shardwise.hardware.chip import Chip
from shardwise.hardware.totals import vector_ops
from shardwise.units import dtype_bytes
from shardwise.work import Quantity

LEVELS: Mapping[str, str] = {
    "hbm": "hbm_bandwidth",
    "l2": "l2_bandwidth",
    "sram": "sram_bandwidth",
    "host": "host_link_oneway",
}
"""Memory levels and the Chip field with their bandwidth in bytes/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of math and of moving bytes over `channel` ("HBM", "network", ...)."""

    math_seconds: Quantity
    comms_seconds: Quantity
    channel: str

    @property
    def lower(self) -> Quantity:
        """Perfect overlap: the larger of the two."""
        return np.maximum(self.math_seconds, self.comms_seconds)

    @property
    def upper(self) -> Quantity:
        """No overlap: the sum, at most twice the lower bound."""
        return self.math_seconds + self.comms_seconds

    @property
    def bound(self) -> str:
        """What takes longer: "math" or the channel; for one pair of times."""
        return "math" if self.math_seconds >= self.comms_seconds else self.channel


def math_seconds(flops: Quantity, peak_flops: Quantity) -> Quantity:
    """T_math = FLOPs / (FLOP/s)."""
    return flops / peak_flops


def comms_seconds(bytes_moved: Quantity, bandwidth: Quantity) -> Quantity:
    """T_comms = bytes / (bytes/s), within a chip or between chips."""
    return bytes_moved / bandwidth


def critical_intensity(peak_flops: Quantity, bandwidth: Quantity) -> Quantity:
    """FLOPs per byte at which both bounds meet: peak / bandwidth.

    >>> round(critical_intensity(1.97e14, 8.2e11))
    240
    """
    return peak_flops / bandwidth


def attainable_flops(intensity: Quantity, peak_flops: Quantity, bandwidth: Quantity) -> Quantity:
    """FLOP/s at an intensity in FLOPs per byte: min(peak, intensity x bandwidth)."""
    return np.minimum(peak_flops, intensity * bandwidth)


def level_bandwidth(chip: Chip, level: str) -> float:
    """Bandwidth of a memory level of a chip in bytes/s; BadRequest if unknown or not catalogued."""
    check_known("memory level", level, LEVELS)
    return chip.require(LEVELS[level])


def chip_critical_intensity(chip: Chip, *, dtype: str, level: str = "hbm") -> float:
    """Critical intensity of the chip's matmul units computing in a dtype, fed from a level."""
    return chip.peak(dtype) / level_bandwidth(chip, level)


def vector_critical_intensity(chip: Chip, *, level: str = "hbm", fma: bool = True) -> float:
    """Critical intensity of the vector units of the whole chip, fed from a level.

    All cores against the whole chip's bandwidth; the book's "around 3" takes one core (errata 1.4).
    Peaks of chips with fused multiply-add count it as two FLOPs; `fma` False counts what code
    without it reaches, half of that there (GPU chapter, quiz 1, question 7).
    """
    rate = chip.require("vector_flops") if fma else vector_ops(chip)
    return rate / level_bandwidth(chip, level)


def elementwise_intensity(arrays: int, *, dtype: str = "f32", flops: float = 1) -> float:
    """FLOPs per byte of an elementwise op that reads and writes `arrays` arrays in all.

    >>> elementwise_intensity(3) == 1 / 12  # f32 addition: two reads, a write
    True
    """
    return flops / (arrays * dtype_bytes(dtype))


def elementwise_times(
    elements: Quantity, chip: Chip, arrays: int, *, dtype: str = "f32", flops: float = 1
) -> Times:
    """Seconds of an elementwise op on the vector units, without fused multiply-add, and of its
    bytes over HBM."""
    moved = elements * arrays * dtype_bytes(dtype)
    return Times(
        math_seconds=elements * flops / vector_ops(chip),
        comms_seconds=moved / chip.require("hbm_bandwidth"),
        channel="HBM",
    )
