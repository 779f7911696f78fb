"""The three numbers of an estimate, for one plan."""

from dataclasses import dataclass

from shardwise.boundary.records import Record, Unbounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(Record):
    """Seconds: lower <= expected <= upper."""

    lower: Unbounded
    """Seconds of the busiest resource at its peak rate, with nothing else."""
    expected: Unbounded
    """Seconds at derated rates, with the overlap that streams and order allow."""
    upper: Unbounded
    """Seconds where nothing overlaps, at derated rates."""

    def __mul__(self, times: float) -> "Bounds":
        return Bounds(
            lower=self.lower * times, expected=self.expected * times, upper=self.upper * times
        )
