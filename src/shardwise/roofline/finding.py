"""A finding: what is wrong in a compiled program, where, its seconds, and what to do about it."""

from dataclasses import dataclass

from shardwise.boundary.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Record):
    """A mistake in a compiled program."""

    rule: str
    """The rule that found it."""
    seconds: float
    """Seconds that it costs, per step and device."""
    where: str
    """file:line, or arguments."""
    what: str
    """What it is, with its figures."""
    remedy: str
    """What to write instead; lines after the first are code."""
    frees: float = 0.0
    """Bytes per device that the remedy frees, of a mistake that costs memory; else 0."""
    at_most: bool = False
    """Whether `seconds` are the most that the remedy saves, as the compiler may use up a part."""
