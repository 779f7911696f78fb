"""One matmul on one chip: every number of its roofline, and its seconds with three bounds."""

from dataclasses import dataclass

import numpy as np

from shardwise.hardware.chip import Chip
from shardwise.roofline.chip_roofline import (
    CHANNELS,
    Times,
    attainable_flops,
    chip_critical_intensity,
    comms_seconds,
    level_bandwidth,
    level_latency,
    level_named,
    math_seconds,
)
from shardwise.roofline.matmul import (
    ElementBytes,
    MatmulBytes,
    critical_batch,
    critical_batch_approx,
    first_batch_at_peak,
    matmul_bytes,
    matmul_flops,
    matmul_intensity,
    padded_flops,
)
from shardwise.work import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRoofline:
    """A matmul against HBM, or another level. `at_peak` is the book's pair of times, `derated` what
    is expected."""

    flops: Quantity
    padded_flops: Quantity
    bytes: MatmulBytes
    intensity: Quantity
    critical_intensity: float
    attainable_flops: Quantity
    at_peak: Times
    derated: Times
    critical_batch: Quantity
    critical_batch_approx: Quantity
    first_batch_at_peak: Quantity

    @property
    def lower(self) -> Quantity:
        """Seconds with perfect overlap at peak rates: the book's lower bound."""
        return self.at_peak.lower

    @property
    def expected(self) -> Quantity:
        """Seconds with perfect overlap at derated rates, the dims padded to the chip's tile."""
        return self.derated.lower

    @property
    def upper(self) -> Quantity:
        """Seconds without overlap at derated rates; `at_peak.upper` is the book's upper bound."""
        return self.derated.upper

    def good(self, ramp: float) -> Quantity:
        """Seconds of a good kernel alone: as expected, with the `ramp` of its start and its end
        upon its math; streams of operands hide it (`price.price_op`)."""
        return np.maximum(self.derated.lower, self.derated.math_seconds + ramp)


def matmul_roofline(
    m: Quantity,
    k: Quantity,
    n: Quantity,
    *,
    chip: Chip,
    dtype: str,
    elements: ElementBytes,
    level: str = "hbm",
) -> MatmulRoofline:
    """The roofline of [m, k] x [k, n] computed in `dtype`, its operands stored as `elements` say
    and moved between the units and the `level` (`chip_roofline.LEVELS`).

    Raises BadRequest if the chip has no peak for the dtype or no bandwidth of the level.
    """
    peak, bandwidth = chip.peak(dtype), level_bandwidth(chip, level)
    moved = matmul_bytes(m, k, n, elements=elements)
    flops, padded = matmul_flops(m, k, n), padded_flops(m, k, n, tile=chip.matmul_tile)
    intensity = matmul_intensity(m, k, n, elements=elements)
    critical = chip_critical_intensity(chip, dtype=dtype, level=level)
    rates, hop, channel = chip.efficiency, level_latency(chip, level), CHANNELS[level_named(level)]
    reached = {"HBM": rates.hbm, "chip link": rates.network, CHANNELS["dcn"]: rates.outer_network}
    derated = bandwidth * reached.get(channel, 1.0)
    return MatmulRoofline(
        flops=flops,
        padded_flops=padded,
        bytes=moved,
        intensity=intensity,
        critical_intensity=critical,
        attainable_flops=attainable_flops(intensity, peak, bandwidth),
        at_peak=_times(flops, moved, peak, bandwidth, channel, hop),
        derated=_times(padded, moved, peak * rates.matmul_rate(dtype), derated, channel, hop),
        critical_batch=critical_batch(k, n, elements=elements, intensity=critical),
        critical_batch_approx=critical_batch_approx(elements=elements, intensity=critical),
        first_batch_at_peak=first_batch_at_peak(k, n, elements=elements, intensity=critical),
    )


def _times(
    flops: Quantity, moved: MatmulBytes, peak: float, bandwidth: float, channel: str, hop: float
) -> Times:
    return Times(
        math_seconds=math_seconds(flops, peak),
        comms_seconds=comms_seconds(moved.total, bandwidth),
        channel=channel,
        latency_seconds=hop,
    )
