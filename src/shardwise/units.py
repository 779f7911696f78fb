"""Parse and print quantities. Inside: bytes, seconds, FLOPs, bytes/s, USD as plain floats.

GB is 1e9 and GiB is 2**30; a printed size always says which. Counts take decimal suffixes
(k, M, B or G, T, P) and binary ones (Ki, Mi, Gi, Ti).
"""

import math
import re
from collections.abc import Mapping

from shardwise.errors import BadRequest, entry_of, shown

DTYPE_BYTES: Mapping[str, float] = {
    "f64": 8.0,
    "f32": 4.0,
    "bf16": 2.0,
    "f16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
    # Block formats carry their scales: mxfp8/mxfp4 one byte per 32 values (OCP MX 1.0),
    # nvfp4 one fp8 scale per 16 values (NVIDIA Blackwell).
    "mxfp8": 1.0 + 1 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes per element by dtype name."""

_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_SECONDS |= {"d": 86400.0, "y": 365 * 86400.0}
_NUMBER = re.compile(
    # A comma separates thousands where nothing else can be meant, as in 1,500,000 or 1,500.5;
    # 1,500 may be one and a half, so a single comma is refused.
    r"([+-]?(?:\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,}|\d[\d_]*(?:\.\d*)?|\.\d+)"
    r"(?:[eE][+-]?\d+)?)"
    r"\s*([A-Za-zµ]*)",
    re.ASCII,
)

MOST_COUNT = 1e30
"""FLOPs of the largest run so far are 1e26 or so."""
MOST_BYTES = 1e24
LEAST_SECONDS, MOST_SECONDS = 1e-12, 1e13
"""A picosecond to 300,000 years."""

DAY = 86400.0
YEAR = 365 * DAY


def dtype_bytes(name: str) -> float:
    """Bytes per element of a dtype; raises BadRequest for an unknown name."""
    return entry_of("dtype", name, DTYPE_BYTES)


COUNTS = "such as 1024, 4Mi, 16e6 or 15T"


def parse_count(text: str | float, what: str = "count", form: str = COUNTS) -> float:
    """A positive count, or its text with an optional suffix; `form` says in an error what is taken.

    >>> parse_count("4Mi"), parse_count("15T"), parse_count("16e6")
    (4194304.0, 15000000000000.0, 16000000.0)
    """
    scales = {k: v for k, v in {**_DECIMAL, **_BINARY}.items() if k != "e"}  # 4e is a cut-off 4e6
    return _parse(_text(text), what, scales, form, 1e-30, MOST_COUNT)


def parse_bytes(text: str | float, what: str = "size") -> float:
    """A size in bytes; the unit of a text must say GB (1e9) or GiB (2**30).

    >>> parse_bytes("95GiB") == 95 * 2**30
    True
    """
    scales = {f"{k}b": v for k, v in {**_DECIMAL, **_BINARY}.items() if k != "b"}
    form = "with a unit, such as 16GB or 15.75GiB"
    return _parse(_text(text, "B"), what, scales, form, 1e-6, MOST_BYTES)


def parse_seconds(text: str | float, what: str = "time") -> float:
    """A duration in seconds; a text has a unit.

    >>> parse_seconds("15ms")
    0.015
    """
    form = "with a unit: ns, us, ms, s, min, h, d or y"
    return _parse(_text(text, "s"), what, _SECONDS, form, LEAST_SECONDS, MOST_SECONDS)


def _text(value: str | float, unit: str = "") -> str:
    """A number as a person would write it in the unit of the inside."""
    return value if isinstance(value, str) else f"{value}{unit}"


def _parse(
    text: str, what: str, scales: Mapping[str, float], form: str, least: float, most: float
) -> float:
    match = _NUMBER.fullmatch(text.strip())
    scale = scales.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise BadRequest(f"{what} {shown(text)} is not a number {form}{_about_comma(text)}")
    try:
        value = float(match[1].replace("_", "").replace(",", "")) * scale
    except ValueError:
        raise BadRequest(f"{what} {shown(text)} is not a number {form}") from None
    if not math.isfinite(value) or value <= 0:
        raise BadRequest(f"{what} {shown(text)} must be positive and finite; write a number {form}")
    if not least <= value <= most:
        raise BadRequest(
            f"{what} {shown(text)} is {value:.3g}; numbers from {least:g} to {most:g} make sense"
        )
    return value


def _about_comma(text: str) -> str:
    if not re.fullmatch(r"[+-]?\d+,\d+[A-Za-z\s]*", text.strip()):
        return ""
    return "; one comma may stand for a decimal point or for thousands: write a point, or none"


def sig(value: float, digits: int = 3) -> str:
    """Three significant digits, with an exponent only below a billionth.

    >>> sig(44.3247), sig(1618.26), sig(0.0015), sig(7.77e-13)
    ('44.3', '1,618', '0.0015', '7.77e-13')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if abs(value) < 1e-9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def many(number: int, noun: str) -> str:
    """A number of things, in the singular where it is one.

    >>> many(1, "chip"), many(4824, "chip")
    ('1 chip', '4,824 chips')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _scaled(value: float, unit: str) -> str:
    for scale, prefix in (
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
    ):
        if abs(value) >= scale:
            return f"{sig(value / scale)} {prefix}{unit}"
    return f"{sig(value)} {unit}"


def format_count(value: float) -> str:
    """A count with a decimal suffix, as the field writes parameters and tokens.

    >>> format_count(70.553e9), format_count(15e12), format_count(512)
    ('70.6B', '15T', '512')
    """
    for scale, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= scale:
            divisor = 1e3 if suffix == "k" else scale
            return f"{sig(value / divisor)}{suffix}"
    return f"{value:,.0f}" if float(value).is_integer() else sig(value)


def format_bytes(value: float) -> str:
    """A size in decimal units.

    >>> format_bytes(16.9e9)
    '16.9 GB'
    """
    return _scaled(value, "B")


def format_binary(value: float) -> str:
    """A size in binary units, as the figures of the page have it.

    >>> format_binary(8e6), format_binary(512), format_binary(-8e6)
    ('7.63 MiB', '512 B', '-7.63 MiB')
    """
    power = min(int(math.log2(max(abs(value), 1)) // 10), 5)
    return f"{sig(value / 1024**power)} {('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi')[power]}B"


def gib(value: float) -> str:
    """A size in GiB; below a tenth of one in MiB or KiB.

    >>> gib(60 * 2**30), gib(5e6), gib(-5e6), gib(0)
    ('60 GiB', '4.77 MiB', '-4.77 MiB', '0 GiB')
    """
    return format_binary(value) if 0 < abs(value) < 0.1 * 2**30 else f"{sig(value / 2**30)} GiB"


def format_gib(value: float) -> str:
    """A capacity both ways, as memory is sold in one and addressed in the other.

    >>> format_gib(102005473280), format_gib(225e3), format_gib(-225e3)
    ('95 GiB (102 GB)', '220 KiB (225 kB)', '-220 KiB (-225 kB)')
    """
    small = 0 < abs(value) < 0.1 * 2**30
    return f"{gib(value)} ({format_bytes(value) if small else f'{sig(value / 1e9)} GB'})"


def format_flops(value: float) -> str:
    """A FLOP count.

    >>> format_flops(6.3e24)
    '6.3e24 FLOPs'
    """
    if value >= 1e21:
        mantissa, exponent = f"{value:.2e}".split("e+")
        return f"{sig(float(mantissa))}e{exponent} FLOPs"
    return _scaled(value, "FLOPs")


def format_rate(value: float, unit: str) -> str:
    """A rate, `unit` being FLOP/s, B/s or tok/s.

    >>> format_rate(4.59e14, "FLOP/s")
    '459 TFLOP/s'
    """
    return _scaled(value, unit)


def format_seconds(value: float) -> str:
    """A duration in the unit that reads best; nothing of a machine is timed below 1 ns.

    >>> format_seconds(0.0123), format_seconds(3829656.9), format_seconds(9e-6)
    ('12.3 ms', '44.3 days', '9 µs')
    >>> format_seconds(7.8e-16), format_seconds(-0.25)
    ('under 1 ns', '-250 ms')
    >>> format_seconds(float("inf"))
    'endless'
    """
    if value < 0:
        return f"-{format_seconds(-value)}"
    if value == float("inf"):
        return "endless"
    if not value:
        return "0 s"
    seconds, unit = _unit_of_time(value)
    return f"{sig(value / seconds)} {unit}" if value >= 1e-9 else "under 1 ns"


def format_seconds_between(low: float, high: float) -> str:
    """A range of durations in the unit of its end, where its start reads well in that, too.

    >>> format_seconds_between(1.71, 3.02), format_seconds_between(0.9, 1.2)
    ('1.71 to 3.02 s', '0.9 to 1.2 s')
    >>> format_seconds_between(105.0, 135.0), format_seconds_between(0.003, 1.2)
    ('1.75 to 2.25 min', '3 ms to 1.2 s')
    """
    seconds, unit = _unit_of_time(high)
    start = sig(low / seconds) if low >= 0.1 * seconds else format_seconds(low)
    return f"{start} to {sig(high / seconds)} {unit}"


def _unit_of_time(value: float) -> tuple[float, str]:
    """The seconds of the unit in which a duration reads best, and its name."""
    if value >= 2 * YEAR:
        return YEAR, "years"
    for least, seconds, unit in (
        (2 * DAY, DAY, "days"),
        (7200.0, 3600.0, "h"),
        (120.0, 60.0, "min"),
    ):
        if value >= least:
            return seconds, unit
    for seconds, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= seconds:
            return seconds, unit
    return 1e-9, "ns"


def format_usd(value: float) -> str:
    """Dollars; from one to a hundred with their cents.

    >>> format_usd(1234567.8), format_usd(230997), format_usd(4.2), format_usd(0.4321)
    ('$1.23M', '$231k', '$4.20', '$0.432')
    """
    for scale, suffix in ((1e6, "M"), (1e4, "k")):
        if value >= scale:
            return f"${sig(value / (1e3 if suffix == 'k' else scale))}{suffix}"
    if 1 <= value < 99.995 and value != round(value):
        return f"${value:.2f}"
    return f"${value:,.0f}" if value >= 100 else f"${sig(value)}"
