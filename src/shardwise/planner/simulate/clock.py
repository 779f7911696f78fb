"""The simulator's clock counts whole femtoseconds, so that sums do not depend on their order.

A run of k equal steps then takes exactly the time of k single ones, and two runs of the same
simulation agree to the last digit however they are grouped. A femtosecond is 1e-6 of the time in
which a chip reads one token's cache.
"""

TICKS = 10**15
"""Ticks per second."""


def ticks(seconds: float) -> int:
    """Seconds as the nearest whole number of ticks."""
    return round(seconds * TICKS)


def seconds(ticks: float) -> float:
    """Ticks as seconds."""
    return ticks / TICKS
