"""Single numbers: finite, within their range, and meant as they are read."""

import math
import re

from shardwise.errors import LONGEST, BadRequest, shown
from shardwise.units import parse_count

MOST_WHOLE = 2**53
"""Beyond it a float no longer holds every whole number."""

_SUFFIXES = tuple("kKmMgGbBtTpPi")
_TEXT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def number(
    value: object,
    what: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    form: str = "a number",
    suffix: bool = False,
) -> float:
    """A finite number in [least, most] and above `above`, from a number or its text.

    `what` names the thing in messages, `form` what it must be. With `suffix` a text may end as
    counts do. Raises BadRequest.

    >>> number("1e3", "rate"), number(4, "seats", least=1), number("4k", "steps", suffix=True)
    (1000.0, 4.0, 4000.0)
    """
    ends = isinstance(value, str) and value.strip()[-1:] in _SUFFIXES
    found = parse_count(str(value), what) if suffix and ends else _float(value)
    if found is None:
        raise BadRequest(f"{what} is {shown(value)}; it must be {form}{_hint(value)}")
    if not (least <= found <= most and found > above):
        raise BadRequest(f"{what} is {shown(value)}; it must be {form}{_range(least, most, above)}")
    return found


def whole(
    value: object,
    what: str,
    *,
    least: float = 0,
    most: float = MOST_WHOLE,
    form: str = "a whole number",
    suffix: bool = False,
) -> int:
    """A whole number in [least, most], from a number or its text. Raises BadRequest.

    >>> whole("12", "layers"), whole(3.0, "layers")
    (12, 3)
    """
    found = number(value, what, least=least, most=most, form=form, suffix=suffix)
    if not found.is_integer():
        raise BadRequest(f"{what} is {shown(value)}; it must be {form}")
    return int(found)


def _float(value: object) -> float | None:
    """A finite float; None for what is none (a bool is none)."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        text = value.strip()
        if len(text) > LONGEST or not _TEXT.fullmatch(text):
            return None
        value = float(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _hint(value: object) -> str:
    if isinstance(value, str) and "," in value:
        return "; write it without commas, with a point before decimals"
    return ""


def _range(least: float, most: float, above: float) -> str:
    parts = []
    if above > -math.inf:
        parts.append(f"above {_limit(above)}")
    if least > -math.inf:
        parts.append(f"at least {_limit(least)}")
    if most < math.inf:
        parts.append(f"at most {_limit(most)}")
    if not parts:
        return ""
    return (" " if parts[0].startswith("above") else " of ") + " and ".join(parts)


def _limit(value: float) -> str:
    """A limit; a whole one with all of its digits where an exponent would round it.

    >>> _limit(2**24), _limit(1e12), _limit(0.5)
    ('16,777,216', '1e+12', '0.5')
    """
    short = f"{value:g}"
    rounded = float(value).is_integer() and float(short) != value
    return f"{value:,.0f}" if rounded else short
