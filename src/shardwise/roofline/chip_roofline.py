"""The roofline of one chip: attainable FLOP/s against intensity, and where the two bounds meet.

Works on plain numbers or arrays; the last functions take them from a Chip. Source: book 1.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.errors import BadRequest, check_known
from shardwise.hardware.chip import Chip
from shardwise.hardware.network import FullMesh, Switched
from shardwise.hardware.totals import vector_ops
from shardwise.units import dtype_bytes
from shardwise.work import Quantity

LEVELS: Mapping[str, str] = {
    "hbm": "hbm_bandwidth",
    "l2": "l2_bandwidth",
    "sram": "sram_bandwidth",
    "host": "host_link_oneway",
    "link": "network.link_oneway",
    "dcn": "data_centre.chip_oneway",
}
"""Where operands may lie, from one to the next chip and out of the data centre too, and the Chip
field with its bandwidth in bytes/s, one-way."""
NAMED: Mapping[str, str] = {
    "vmem": "sram",
    "smem": "sram",
    "pcie": "host",
    "ici": "link",
    "nvlink": "link",
}
"""What people call some of them."""
CHANNELS: Mapping[str, str] = {
    "hbm": "HBM",
    "l2": "L2",
    "sram": "SRAM",
    "host": "host link",
    "link": "chip link",
    "dcn": "data-centre network",
}
"""What an answer calls the levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of math, of moving bytes over `channel` ("HBM", "network", ...), and of the hops
    before the first of them arrives, beside which they move."""

    math_seconds: Quantity
    comms_seconds: Quantity
    channel: str
    latency_seconds: Quantity = 0.0

    @property
    def lower(self) -> Quantity:
        """Perfect overlap: the largest of them."""
        return np.maximum(np.maximum(self.math_seconds, self.comms_seconds), self.latency_seconds)

    @property
    def upper(self) -> Quantity:
        """No overlap: the sum."""
        return self.math_seconds + self.comms_seconds + self.latency_seconds

    @property
    def bound(self) -> str:
        """What takes longest: "math", the channel, or its "latency"; for one set of times."""
        if self.latency_seconds > max(self.math_seconds, self.comms_seconds):
            return "latency"
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


def level_named(level: str) -> str:
    """The level that a name means ("vmem" is "sram"); BadRequest for one that there is not."""
    check_known("memory level", level, [*LEVELS, *NAMED])
    return NAMED.get(level, level)


def level_bandwidth(chip: Chip, level: str) -> float:
    """Bandwidth of a memory level of a chip in bytes/s, or one-way of a link to the next chip
    ("link") or its share of the data-centre network ("dcn"); BadRequest if unknown or not
    catalogued."""
    found = level_named(level)
    if found not in ("link", "dcn"):
        return chip.require(LEVELS[found])
    path, numbers = level_path(chip, found), chip.numbers()
    if path not in numbers:
        raise BadRequest(
            f"chip '{chip.id}' has no {CHANNELS[found]} in the catalogue and the answer needs it; "
            f"give it with --set chip.{path}=NUMBER or --hw FILE, or take another level"
        )
    return float(numbers[path])


def level_latency(chip: Chip, level: str) -> float:
    """Seconds of one hop over a link or the data-centre network; 0 of memories, whose latency the
    catalogue has no number for."""
    found = level_named(level)
    if found == "dcn" and chip.data_centre is not None:
        return chip.data_centre.hop_seconds
    return float(getattr(chip.network, "hop_seconds", 0.0)) if found == "link" else 0.0


def level_path(chip: Chip, level: str) -> str:
    """The path of the level's bandwidth among the chip's numbers; behind switches a link is a
    chip's port, of a full mesh that of a pair."""
    kinds = {Switched: "network.chip_oneway", FullMesh: "network.pair_oneway"}
    return kinds.get(type(chip.network), LEVELS[level]) if level == "link" else LEVELS[level]


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
