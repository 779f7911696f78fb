"""One matmul on one chip: every number of its roofline, and its seconds with three bounds."""

from dataclasses import dataclass

from shardwise.hardware.chip import Chip
from shardwise.roofline.chip_roofline import (
    Times,
    attainable_flops,
    chip_critical_intensity,
    comms_seconds,
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
    """A matmul against HBM. `at_peak` is the book's pair of times, `derated` what is expected."""

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


def matmul_roofline(
    m: Quantity, k: Quantity, n: Quantity, *, chip: Chip, dtype: str, elements: ElementBytes
) -> MatmulRoofline:
    """The roofline of [m, k] x [k, n] computed in `dtype`, its operands stored as `elements` say.

    Raises BadRequest if the chip has no peak for the dtype or no HBM bandwidth.
    """
    peak, bandwidth = chip.peak(dtype), chip.require("hbm_bandwidth")
    moved = matmul_bytes(m, k, n, elements=elements)
    flops, padded = matmul_flops(m, k, n), padded_flops(m, k, n, tile=chip.matmul_tile)
    intensity = matmul_intensity(m, k, n, elements=elements)
    critical = chip_critical_intensity(chip, dtype=dtype)
    rates = chip.efficiency
    return MatmulRoofline(
        flops=flops,
        padded_flops=padded,
        bytes=moved,
        intensity=intensity,
        critical_intensity=critical,
        attainable_flops=attainable_flops(intensity, peak, bandwidth),
        at_peak=_times(flops, moved, peak, bandwidth),
        derated=_times(padded, moved, peak * rates.matmul_rate(dtype), bandwidth * rates.hbm),
        critical_batch=critical_batch(k, n, elements=elements, intensity=critical),
        critical_batch_approx=critical_batch_approx(elements=elements, intensity=critical),
        first_batch_at_peak=first_batch_at_peak(k, n, elements=elements, intensity=critical),
    )


def _times(flops: Quantity, moved: MatmulBytes, peak: float, bandwidth: float) -> Times:
    return Times(
        math_seconds=math_seconds(flops, peak),
        comms_seconds=comms_seconds(moved.total, bandwidth),
        channel="HBM",
    )
