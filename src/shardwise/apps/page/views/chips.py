"""Chips to choose from, and slices of so many chips."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from math import isqrt, log, prod
from typing import Any

from shardwise.apps.page.controls import choice
from shardwise.apps.page.view import refused
from shardwise.errors import ShardwiseError
from shardwise.hardware import Torus, chip_ids, load_chip, parse_slice

CHIPS = tuple(chip_ids())
"""Every chip of the catalogue."""
TORI = tuple(
    name
    for name in CHIPS
    if isinstance(load_chip(name).network, Torus) and load_chip(name).compiler_clock_hz
)
"""Chips in a torus that JAX's compiler knows, for which the figures of ch. 5 are drawn."""
ALL_CHIPS = (*TORI, *(name for name in CHIPS if name not in TORI))
"""Every chip, those in a torus first."""
NONE = "none"
_SPELT = {"nvidia": "NVIDIA", "amd": "AMD", "aws": "AWS"}


def chip_choice(label: str, names: Sequence[str], default: str, **more: Any) -> Any:
    """A control for a chip, with its maker above those of one."""
    makers = ["No other" if name == NONE else load_chip(name).vendor for name in names]
    under = tuple(_SPELT.get(maker, maker[:1].upper() + maker[1:]) for maker in makers)
    return choice(label, names, default, under=under, **more)


def slice_name(chip: str, chips: int) -> str:
    """The slice of so many chips whose sides differ least, or several of the largest; GPUs are
    counted.

    Raises BadRequest where the chip has none.
    """
    if not isinstance(load_chip(chip).network, Torus):
        return f"{chip}:{chips}"
    for sides in _boxes(chip, chips):
        if _is_slice(found := f"{chip}:{'x'.join(map(str, sides))}"):
            return found
    largest = max(_sizes(chip), key=prod)
    count, rest = divmod(chips, prod(largest))
    if not rest and _is_slice(found := f"{count}*{chip}:{'x'.join(map(str, largest))}"):
        return found
    known = sorted({prod(sides) for sides in _sizes(chip)})
    near = ", ".join(map(str, sorted(known, key=lambda size: abs(log(size / chips)))[:4]))
    raise refused("chips", chips, f"{chip} has no slice of so many", f"choose one of {near}")


def room(chip: str, chips: int) -> int:
    """The fewest chips, of so many at least, that are one slice.

    >>> room("v6e", 6), room("h100", 6)
    (8, 6)
    """
    for count in range(chips, 4 * chips + 1):
        with suppress(ShardwiseError):
            if _is_slice(slice_name(chip, count)):
                return count
    return chips


def _is_slice(text: str) -> bool:
    with suppress(ShardwiseError):
        return bool(parse_slice(text))
    return False


def _boxes(chip: str, chips: int) -> list[tuple[int, ...]]:
    """Sides of so many chips: those of listed slices first, then others, the evenest first."""
    listed = [sides for sides in _sizes(chip) if prod(sides) == chips]
    even = sorted(listed, key=lambda sides: (sum(sides), sides))
    others = _factors(chips, len(_sizes(chip)[0]))
    return even + sorted(others, key=lambda sides: (sum(sides), sides))


def _factors(number: int, sides: int) -> list[tuple[int, ...]]:
    """The ways to write a number as a product of so many, each at most the next."""
    if sides == 1:
        return [(number,)]
    return [
        (first, *rest)
        for first in range(1, isqrt(number) + 1)
        if number % first == 0
        for rest in _factors(number // first, sides - 1)
        if first <= rest[0]
    ]


@cache
def _sizes(chip: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, one.partition(":")[2].split("x"))) for one in _slices(chip)]


def _slices(chip: str) -> list[str]:
    import shardwise

    load_chip(chip)
    return list(shardwise.hw_show(chip).slices)


def prices(control: str, chip: str, text: str) -> dict[str, str] | None:
    """What a reader pays for a chip, as --price takes it."""
    if not text:
        return None
    try:
        if not 0 < float(text.lstrip("$")) < 1e6:
            raise ValueError
    except ValueError:
        rule = "it is dollars per chip and hour"
        raise refused(control, text, rule, "write a number such as 2.5, or nothing") from None
    return {chip: text.lstrip("$")}


def overlay(control: str, text: str) -> dict[str, str] | None:
    """Numbers of a chip that take the place of its own, as --set takes them."""
    words = text.split()
    for word in words:
        if "=" not in word:
            rule = "it is NAME=VALUE, with blanks between"
            raise refused(control, text, rule, "write such as hbm_bandwidth=9e11")
    return {f"chip.{one.partition('=')[0]}": one.partition("=")[2] for one in words} or None
