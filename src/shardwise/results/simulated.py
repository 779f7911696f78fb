"""What is told of a simulated load: the fields of `simulate`."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.planner.simulate.figures import OverTime, RunFigures
from shardwise.results.server import ChipPrice


@dataclass(frozen=True, kw_only=True)
class ReplicaCache(Record):
    """The cache of one replica."""

    pages: int
    """Pages in the chips' memory."""
    page_size: int
    """Tokens of a page."""
    tokens: int
    """Tokens of all of them."""
    host_pages: int
    """Pages in the hosts' memory."""


@dataclass(frozen=True, kw_only=True)
class FollowingFleet(Record):
    """The cheapest fleet that follows the load of a trace, counted from its arrivals."""

    start_up_seconds: float
    """Seconds from asking for a server to its first answer."""
    fewest_servers: int
    """Servers that always run."""
    utilisation: float
    """Utilisation at which the fleet starts another server; 1 if the number is fixed."""
    servers: float
    """Servers at the mean."""
    most_servers: int
    """Servers at the most."""
    usd_per_hour: float | None
    """Dollars per hour of all servers at the mean; null without a price."""


@dataclass(frozen=True, kw_only=True)
class ReplayedTime(Record):
    """A time of a benchmark's requests, measured and simulated; an error is |simulated / measured -
    1| of a request."""

    name: str
    """ttft, tpot or e2el."""
    requests: int
    """Requests that have it."""
    measured_median_seconds: float
    """Median of the measured."""
    simulated_median_seconds: float
    """Median of the simulated."""
    measured_p90_seconds: float
    """90th percentile of the measured."""
    simulated_p90_seconds: float
    """90th percentile of the simulated."""
    median_error: float
    """Median error of a request."""
    p90_error: float
    """90th percentile of the errors."""
    too_high: float
    """Share of the requests whose simulated time is above the measured."""


@dataclass(frozen=True, kw_only=True)
class WholeLoadFigures(RunFigures):
    """Figures of a load, simulated from its first request to its last."""

    cache: ReplicaCache
    """The cache of one replica."""
    price: ChipPrice | None
    """The price behind the dollars; null where there is none."""
    over_time: OverTime
    """What waits and runs, and for how long, over the run."""
    following: Sequence[FollowingFleet] | None = part()
    """Fleets that follow the load of the trace, by their start-up."""
    replayed: Sequence[ReplayedTime] | None = part()
    """Times of the requests of a benchmark, measured and simulated."""


@dataclass(frozen=True, kw_only=True)
class SteadyFigures(WholeLoadFigures):
    """Figures of the steady state; a simulated part of the servers stands for all."""

    answered: float
    """Answered tokens over requested tokens, while the counted requests arrive."""
    warm_up_requests: int
    """Requests that fill the servers before the counted ones."""
    rate: float
    """Requests per second that come."""
    simulated_servers: int
    """Servers that were simulated, with their share of the load."""
    holds: bool
    """Whether this run is within the objectives."""


@dataclass(frozen=True, kw_only=True)
class LargestRateFigures(SteadyFigures):
    """Figures at the largest rate that the plan holds."""

    largest_rate: float
    """Requests per second that hold, in slow runs too."""


@dataclass(frozen=True, kw_only=True)
class OverloadedFigures(SteadyFigures):
    """Figures under a load that the plan does not hold."""

    holds_about: float | None
    """Requests per second that may hold by one short run; null where none does."""
