"""The rows of a page that say how good a measured time is."""

from shardwise.commands.base.layout import percent
from shardwise.roofline.reached import Reached
from shardwise.units import format_rate, format_seconds, sig

NOTHING = "not measured, so the peak"
"""Of what no share of the peak is known."""
ROW = tuple[str, str, str]


def reached_rows(found: Reached, bound: str) -> list[ROW]:
    """The measured time, its share of the roofline, and what a good kernel takes."""
    rates = [(found.flops_per_second, "FLOP/s"), (found.bytes_per_second, "B/s")]
    said = ", ".join(format_rate(rate, unit) for rate, unit in rates if rate)
    value = found.good_value
    shown = format_seconds(value) if found.good_constant.endswith("_ramp") else sig(value)
    rest = f"{found.good_constant} {shown}, {found.good_basis}" if found.good_constant else NOTHING
    good = f"{_share(found.good_of_roofline)} of the roofline; {rest}"
    return [
        ("measured", format_seconds(found.seconds), said),
        ("of the roofline", _share(found.of_roofline), f"bound by {bound}"),
        ("a good kernel", format_seconds(found.good_seconds), good),
        ("of a good kernel", _share(found.of_good), ""),
    ]


def _share(share: float | None) -> str:
    if share is None:
        return "impossible"
    return percent(share) if share >= 0.001 else f"{sig(100 * share)} %"
