"""From the words of a request to values: chip constants, slices, batches, utilisation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.boundary import number
from shardwise.errors import BadRequest, shown, unknown
from shardwise.hardware import Chip, Spelling, load_chip, parse_price, read_slice, read_target
from shardwise.plans import MESH_AXES
from shardwise.units import parse_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """How chips are read: which constants, whose files, and what overrides them."""

    constants: str = "vendor"
    files: Sequence[str] = ()
    overrides: Sequence[str] = ()
    prices: Sequence[str] = ()

    def chip(self, name: str) -> Chip:
        """One chip under these settings."""
        prices = {chip: price.usd_per_chip_hour for chip, price in map(parse_price, self.prices)}
        return load_chip(
            name,
            constants=self.constants,
            hw_files=self.files,
            set_=self.overrides,
            prices=prices,
        )

    def target(self, text: str) -> Chip | Spelling:
        """A bare chip (search its slices) or a spelt slice."""
        return read_target(text, self.chip)

    def slice(self, text: str) -> Spelling:
        """A spelt slice."""
        return read_slice(text, self.chip)


MOST = 1e12
"""The largest batch in sequences, and the longest sequence, that make sense; both fit an int64."""


def parse_batch(text: str | int, sequence_length: int) -> int:
    """A batch in sequences: `4Mi` or a number counts tokens, `1024seq` sequences."""
    text = str(text)
    if text.strip().lower().endswith("seq"):
        return whole(parse_count(text.strip()[:-3], "batch"), f"batch '{text}'")
    tokens = parse_count(text, "batch")
    if tokens % sequence_length:
        lower = whole(tokens // sequence_length, f"batch '{text}' in sequences")
        options = " or ".join(
            f"--batch {n}seq ({n * sequence_length:,} tokens)" for n in (lower, lower + 1) if n
        )
        raise BadRequest(
            f"batch '{text}' is {tokens:,.0f} tokens, no whole number of sequences of "
            f"{sequence_length} tokens; the nearest are {options}"
        )
    return whole(tokens // sequence_length, f"batch '{text}' in sequences")


def whole(value: float, what: str) -> int:
    """A count that must be a whole number, and no larger than makes sense."""
    if value > MOST:
        raise BadRequest(f"{what} is {value:g}; at most {MOST:g} makes sense")
    if value != int(value):
        raise BadRequest(f"{what} is {value:g}; it must be a whole number")
    return int(value)


def parse_total(text: str, what: str) -> float:
    """Tokens of a run, or parameters of a model: a count that no run or model exceeds."""
    value = parse_count(text, what)
    if value > MOST_IN_ALL:
        raise BadRequest(f"{what} is {value:g}; at most {MOST_IN_ALL:g} makes sense")
    return value


MOST_IN_ALL = 1e18
"""The most tokens of a run, and parameters of a model, that make sense."""


def parse_share(text: str, what: str) -> float:
    """A utilisation, `40%` or 0.4, above 0 and at most 1."""
    try:
        value = number(text.removesuffix("%"), what) / (100 if text.endswith("%") else 1)
    except BadRequest:
        raise BadRequest(f"{what} {shown(text)} is no share; write it like 40% or 0.4") from None
    if not 1e-9 <= value <= 1:
        raise BadRequest(f"{what} {shown(text)} is outside 0..100%; write it like 40% or 0.4")
    return value


def parse_pins(texts: Sequence[str]) -> dict[str, int]:
    """`tensor=8` pins a mesh degree; several may be given."""
    pins: dict[str, int] = {}
    for text in texts:
        axis, equals, degree = text.partition("=")
        if not equals or not re.fullmatch(r"0*[1-9][0-9]{0,8}", degree):
            raise BadRequest(f"pin {shown(text)} is not AXIS=DEGREE; write it like --pin tensor=8")
        if axis not in MESH_AXES:
            raise unknown("mesh axis", axis, MESH_AXES, "axes are named by their role")
        if pins.setdefault(axis, int(degree)) != int(degree):
            raise BadRequest(f"mesh axis '{axis}' is pinned to {pins[axis]} and {degree}; give one")
    return pins
