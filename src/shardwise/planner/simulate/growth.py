"""Servers that follow a load which rises and falls, and what their start-up costs.

A server that is asked for now serves after its start-up, for a load that is not there yet. An
autoscaler has two settings against that: the fewest servers that always run, and the share of their
load at which it asks for more (`minReplicas` and the target utilisation of a
HorizontalPodAutoscaler of Kubernetes). Here they are the cheapest ones with which 99 of 100
requests of a trace come while there are servers enough for them. Servers that are needed no more
end at once. All of it is counted from the arrivals of the trace; no request is simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.errors import BadRequest

WINDOW, REQUESTS = 30.0, 100
"""Seconds of a window, or the time in which so many requests come where that is longer: their
number is then within 10 % of its mean (ours)."""
SHARE = 0.99
"""Share of the requests that find enough servers (ours)."""
FEWEST = 5
"""Windows that are looked at, at least (ours)."""
_STEPS = 64
"""Numbers of servers that always run which are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A fleet that follows a load."""

    start_up_seconds: float
    """Seconds from asking for a server to its first answer."""
    fewest_servers: int
    """Servers that always run."""
    utilisation: float
    """Share of what the servers hold at which more are asked for."""
    servers: float
    """Servers at the mean."""
    most_servers: int
    """Servers at the most."""


def following(
    arrivals: Sequence[float], each: float, start_ups: Sequence[float]
) -> tuple[Following, ...]:
    """The cheapest fleets that follow the arrivals (seconds, in order) of a trace; a server holds
    `each` requests per second. Raises BadRequest for a trace that is too short to tell.

    >>> rising = np.arange(6000.0) ** 0.5 * 30  # 1 request/s more every 450 s
    >>> [(f.fewest_servers, round(f.servers, 1)) for f in following(rising, 0.1, (0, 300))]
    [(11, 28.7), (25, 35.8)]
    """
    times = np.asarray(arrivals, dtype=float) - arrivals[0]
    span = float(times[-1])
    window = max(WINDOW, REQUESTS * span / len(times))
    counts = np.bincount((times // window).astype(int))[:-1]  # the last window is not whole
    longest = int(max(start_ups) // window)
    if len(counts) < longest + 1 + FEWEST:
        needed = (longest + 2 + FEWEST) * window
        raise BadRequest(
            f"the trace lasts {span:,.0f} s; what a start-up of {max(start_ups):,.0f} s costs is "
            f"seen in {needed:,.0f} s or more, so give a longer trace or a shorter start-up"
        )
    return tuple(_cheapest(counts, counts / window / each, int(s // window), s) for s in start_ups)


def _cheapest(counts: np.ndarray, load: np.ndarray, late: int, start_up: float) -> Following:
    """The fleet whose servers come `late` windows after the one that they are asked for in; `load`
    is in servers."""
    known, met, requests = load[: -1 - late], load[1 + late :], counts[1 + late :]
    found = []
    for fewest in np.unique(np.ceil(np.linspace(1, max(1.0, met.max()), _STEPS))):
        room = _head_room(np.maximum(known, 1.0), met, requests, fewest)
        servers = np.maximum(fewest, np.ceil(room * known))
        found.append((float(servers.mean()), int(fewest), room, int(servers.max())))
    mean, fewest, room, most = min(found)
    return Following(
        start_up_seconds=start_up,
        fewest_servers=fewest,
        utilisation=1 / room,
        servers=mean,
        most_servers=most,
    )


def _head_room(known: np.ndarray, met: np.ndarray, requests: np.ndarray, fewest: float) -> float:
    """Times the known load that servers must be there for, beside `fewest` that always are."""
    growth = np.where(met <= fewest, 0.0, met / known)
    order = np.argsort(growth)
    served = np.cumsum(requests[order])
    return max(1.0, float(growth[order][np.searchsorted(served, SHARE * served[-1])]))
