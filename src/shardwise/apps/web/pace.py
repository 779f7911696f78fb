"""What all requests that are refused may take together, in time."""

import time

SHARE = 0.2
"""Of one core's time, for requests that are refused; who asks for more of it waits."""
BURST = 2.0
"""Seconds of it that are spent before anyone waits."""
LONGEST = 5.0
"""Seconds that one refusal waits at most."""


class RefusalPace:
    """Refusals that cost more than a share of the time are late, so that clients who send nothing
    but mistakes leave the rest of it to others."""

    def __init__(self) -> None:
        self._debt, self._since = 0.0, time.monotonic()

    def spent(self, seconds: float) -> float:
        """So many seconds went into a refusal; how long it waits now, in seconds."""
        self._pay()
        self._debt += seconds
        return min(self.due, LONGEST)

    @property
    def due(self) -> float:
        """Seconds until there is time for the next one."""
        self._pay()
        return max(0.0, self._debt - BURST) / SHARE

    def _pay(self) -> None:
        now = time.monotonic()
        self._debt = max(0.0, self._debt - (now - self._since) * SHARE)
        self._since = now
