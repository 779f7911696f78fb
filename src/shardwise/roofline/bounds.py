"""The three numbers of an estimate, for one plan."""

from dataclasses import dataclass

from shardwise.boundary.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(Record):
    """Seconds: lower <= expected <= upper."""

    lower: float
    """Seconds of the busiest resource at its peak rate, with nothing else."""
    expected: float
    """Seconds at derated rates, with the overlap that streams and order allow."""
    upper: float
    """Seconds where nothing overlaps, at derated rates."""

    def __mul__(self, times: float) -> "Bounds":
        return Bounds(
            lower=self.lower * times, expected=self.expected * times, upper=self.upper * times
        )
