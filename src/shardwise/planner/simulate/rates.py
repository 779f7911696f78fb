"""The largest rate that a fleet holds: found by short runs, confirmed by full ones.

A short run (`QUICK`) is one run of few requests on a small part of the fleet, and costs a twentieth
of the runs that say whether a rate holds (`steady.hold`). It finds the rate to a few per cent; from
there full runs go up or down in small steps. A rate that fails says where to look next: what an
overloaded fleet answers is what it can, and the load on the targets grows steadily with the rate.
"""

from collections.abc import Callable
from dataclasses import replace
from math import exp, floor, inf, isfinite, log, log10

from shardwise.planner.simulate.demand import Demand
from shardwise.planner.simulate.metrics import Objectives
from shardwise.planner.simulate.run import SimulatedFleet
from shardwise.planner.simulate.steady import ANSWERED, LIMIT, Held, hold

QUICK, QUICK_FULL = 400, 100.0
"""Requests of a short run that are looked at, and in flight."""

PROMISED = 1.04
"""The rate that short runs hold over that of full ones: the median of 50 (docs/lab/page.md)."""

NEAR, FINE = 1.04, 1.025
"""Factors between a rate that holds and one that does not, by short and by full runs. The rates
that hold have no sharp end: on the edge of a queue 88.205 requests/s hold and 88.206 do not, as the
longest tail of ten runs is 1.16 or 1.26 times their mean (llama-3-8b on two h100, 512 in, 32 out).
So two searches that try other rates may end further apart than either factor."""

_STEP, _FURTHEST = 1.15, 2.0
"""The first factor between two rates that short runs try, and the largest of all."""

_LITTLE = 0.99
"""The last factor to a smaller rate: what fails by little is no further away."""

_NEAREST = 0.25
"""The least share of the way from one of two rates to the other at which a third is tried. All that
are tried below a rate that fails are so less than it by this power of `within`, or by more."""

STEEP = 2.5
"""By which power of the rate the load on the targets grows, until two rates were tried."""

_HOPELESS = 0.01
"""Share of the guess below which nothing is tried."""


Enough = Callable[[float, float], bool]
"""Whether the largest rate need not be known better than to lie from one rate up to another."""


def about_rate(
    fleet: SimulatedFleet,
    demand: Demand,
    goal: Objectives,
    guess: float,
    *,
    enough: Enough = lambda low, high: False,
) -> Held | None:
    """Roughly the largest rate that holds, by short runs; None where none does. Where less is
    `enough`, a smaller one that holds. Short runs end before a long queue has grown and shrunk."""

    def tried(rate: float) -> Held:
        return briefly(fleet, demand, rate, goal)

    return _largest(tried, guess, _STEP, NEAR, enough=enough)


def briefly(fleet: SimulatedFleet, demand: Demand, rate: float, goal: Objectives) -> Held:
    """What a fleet does at a rate, by a short run."""
    return hold(fleet, demand, rate, goal, runs=1, counted=QUICK, full=QUICK_FULL)


def cautiously(fleet: SimulatedFleet, demand: Demand, rate: float, goal: Objectives) -> Held:
    """What full runs should say of a rate, by a short one at what that promises too much."""
    return replace(briefly(fleet, demand, rate * PROMISED, goal), rate=rate)


def rate_from(
    fleet: SimulatedFleet,
    demand: Demand,
    goal: Objectives,
    guess: float,
    *,
    progress: Callable[[], None] = lambda: None,
) -> Held | None:
    """The largest rate that holds, looked for from a guess on; None where none does. All who say it
    of a plan ask here from the rate of its workload on: so they try the same rates."""
    near = about_rate(fleet, demand, goal, guess)
    return near and largest_rate(fleet, demand, goal, near.rate, progress=progress)


def largest_rate(
    fleet: SimulatedFleet,
    demand: Demand,
    goal: Objectives,
    near: float,
    *,
    least: float = 0.0,
    progress: Callable[[], None] = lambda: None,
) -> Held | None:
    """The largest rate that holds, of three digits, from one that is near it on; None where none
    does, or none as large as `least`, below which nothing is tried, and which is tried first where
    the one that is near is less."""

    def tried(rate: float) -> Held:
        progress()
        return hold(fleet, demand, rounded(rate), goal)

    return _largest(tried, max(near, least), FINE, FINE, least)


def _largest(
    tried: Callable[[float], Held],
    guess: float,
    step: float,
    within: float,
    least: float = 0.0,
    enough: Enough = lambda low, high: False,
) -> Held | None:
    """Try rates until one that holds and one that does not are `within` a factor of one another, or
    near `enough`."""
    low: Held | None = None
    high: Held | None = None
    rate = guess
    seen: set[float] = set()
    while rate > guess * _HOPELESS:
        found = tried(rate)
        if found.rate in seen:  # between the two there is no further rate of three digits
            break
        seen.add(found.rate)
        low, high = (found, high) if found.kept else (low, found)
        if high is not None and (
            (low is not None and high.rate <= within * low.rate)
            or rounded(high.rate * within**-_NEAREST) <= least
        ):
            break
        if low is not None and enough(low.rate, high.rate if high else inf):
            break
        if low is not None and high is not None:
            rate = _between(low, high)
            continue
        rate = found.rate * (step if found.kept else _smaller(found, step))
        step = min(step * step, _FURTHEST)
    return low


def _smaller(failed: Held, step: float) -> float:
    """The factor from a rate that does not hold to one that may, at most two steps away."""
    if failed.answered < ANSWERED:
        factor = failed.answered
    elif failed.load > LIMIT:
        factor = (LIMIT / failed.load) ** (1 / STEEP)
    else:
        factor = 1 / step
    return min(max(factor, step**-2), _LITTLE)


def _between(low: Held, high: Held) -> float:
    """Where the load on the targets should be what it may be, between two rates, as a line through
    the logarithms; their middle where what fails is no load."""
    lightest, heaviest = log(max(low.load, 1e-9)), log(high.load) if high.load < inf else inf
    share = 0.5
    if isfinite(heaviest) and lightest < log(LIMIT) < heaviest:
        share = (log(LIMIT) - lightest) / (heaviest - lightest)
    share = min(max(share, _NEAREST), 1 - _NEAREST)
    return exp((1 - share) * log(low.rate) + share * log(high.rate))


def rounded(rate: float, digits: int = 3) -> float:
    """A rate as it is printed: cut after three digits, so that no more is promised than held.

    >>> rounded(4.4391), rounded(512.9)
    (4.43, 512.0)
    """
    scale = 10.0 ** (digits - 1 - floor(log10(rate)))
    return floor(rate * scale + 1e-9) / scale
