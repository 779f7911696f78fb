"""How good a measured time is: its share of the roofline, and of what a good kernel takes.

share = least seconds at peak rates / seconds measured
"""

from dataclasses import dataclass

from shardwise.boundary.records import Record
from shardwise.hardware.chip import GIVEN, Chip
from shardwise.roofline.rests import PEAK, Rest
from shardwise.units import format_seconds, sig

NEAR = 1.1
"""A clock above that of the peak explains so many times the peak: an H100's boost is 1.98 GHz, the
clock of its data sheet's rates 1.83."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached(Record):
    """How good a measured time is."""

    seconds: float
    """Seconds measured."""
    of_roofline: float | None
    """Share of the roofline that it reaches: the least seconds over it; null where it is below the
    least, which is an error of measurement or of units."""
    flops_per_second: float
    """FLOP/s that it reaches."""
    bytes_per_second: float
    """Bytes per second that it moves."""
    good_seconds: float
    """Seconds of a good kernel there."""
    good_of_roofline: float
    """Share of the roofline that a good kernel reaches."""
    of_good: float | None
    """Seconds of a good kernel over those measured; null where `of_roofline` is."""
    good_constant: str
    """The number of the chip behind the good kernel; "" where it is the peak itself."""
    good_value: float
    """That number: a share of the peak rate, or a kernel's start and end in seconds."""
    good_basis: str
    """What kind of number it is: measured, fitted, prior, assumed, given, or a peak."""
    good_source: str
    """Where it comes from."""


def reached(
    seconds: float,
    *,
    least: float,
    good: float,
    rest: Rest,
    flops: float = 0.0,
    moved: float = 0.0,
) -> Reached:
    """A measured time beside the `least` at peak rates and beside the seconds of a `good` kernel,
    whose rate rests on a constant."""
    possible = seconds >= least
    return Reached(
        seconds=seconds,
        of_roofline=least / seconds if possible else None,
        flops_per_second=flops / seconds,
        bytes_per_second=moved / seconds,
        good_seconds=good,
        good_of_roofline=least / good,
        of_good=good / seconds if possible else None,
        good_constant=rest.constant,
        good_value=rest.value,
        good_basis=rest.basis,
        good_source=rest.source,
    )


def rest_of(chip: Chip, name: str) -> Rest:
    """A number of `Chip.efficiency` with its source; "" is the peak, of which nothing is taken."""
    path = f"efficiency.{name}" if name else ""
    return Rest(
        constant=path,
        value=chip.numbers()[path] if path else 1.0,
        basis=chip.bases.get(path, GIVEN) if path else PEAK,
        source=chip.sources.get(path, ""),
    )


def stays_in(chip: Chip, bound: str, moved: float) -> str:
    """The memory in which the bytes of an op bound by HBM may stay between runs; "" for none."""
    cache = chip.l2_bytes or chip.sram_bytes or 0.0
    return "the chip's cache" if bound == "HBM" and moved <= cache else ""


def impossible(seconds: float, least: float, bound: str, stays: str = "") -> str:
    """Why a time below the least cannot be; `stays` names a memory that holds all the bytes."""
    times = least / seconds
    causes = ["a call that did not wait", "a division by runs or devices", "another unit"]
    if stays:
        causes.insert(0, f"bytes that stay in {stays} between runs")
    if times <= NEAR:
        causes.insert(0, "a clock above the one behind the peak")
    return (
        f"{format_seconds(seconds)} is {sig(times)} times faster than the roofline allows "
        f"({format_seconds(least)} at peak rates, bound by {bound}): an error of measurement or of "
        f"units, such as {', '.join(causes[:-1])} or {causes[-1]}"
    )
