"""Whole numbers of HLO text: no longer and no larger than what a program can hold."""

from shardwise.errors import BadRequest, shown

MOST = 2**53
"""Beyond it a float no longer holds every whole number."""
MOST_DEVICES = 2**18
"""Partitions times replicas times slices; the largest pods have some ten thousand chips."""


def integer(text: str, what: str, *, least: int = 0, most: int = MOST) -> int:
    """A whole number in [least, most]; `what` names it in messages. Raises BadRequest.

    >>> integer("12", "a dim")
    12
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise BadRequest(f"{what} is {shown(text)}; it must be a whole number")
    found = int(text)
    if not least <= found <= most:
        raise BadRequest(f"{what} is {text}; it must be at least {least} and at most {most}")
    return found


def integers(
    text: str, what: str, *, least: int = 0, most: int = MOST, between: str = ","
) -> tuple[int, ...]:
    """Whole numbers with commas between them; empty text has none. Raises BadRequest.

    >>> integers("1, 0", "a layout")
    (1, 0)
    """
    if not text.strip():
        return ()
    return tuple(
        integer(part.strip(), what, least=least, most=most) for part in text.split(between)
    )
