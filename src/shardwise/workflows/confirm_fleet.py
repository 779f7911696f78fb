"""The front of a fleet search, simulated: does each plan keep its objectives, and at which cost?

Every plan gets requests at random at its own rate for some multiples of the time that one takes, or
those of a trace; the first and the last are left out, as the servers fill and empty. A plan that
misses an objective is tried at lower rates, which makes its tokens dearer (a given load takes so
many more replicas): so the order of plans may change.

A fleet whose load is more than `_MOST` requests is simulated in part: so many replicas of each pool
that their share of the load is that long. Each then sees the load that it would see in the whole
fleet; a router with fewer replicas to choose from evens it out less, so times are rather too long.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import BadRequest
from shardwise.planner.serve.fleet import Fleet
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.simulate.metrics import REQUEST_COLUMNS, Objectives, request_rows
from shardwise.planner.simulate.run import simulate
from shardwise.planner.simulate.traces import poisson, read_trace, scaled
from shardwise.plans.serve import ServeScheduling
from shardwise.scheduling import Request
from shardwise.units import format_seconds, sig
from shardwise.workflows.simulate import fleet_of

SHARES = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Shares of the rate that are tried, until one keeps the objectives."""

_SPAN, _FROM, _TO = 5.0, 1.5, 4.0
"""Length of the load in times of one request, and the part of it whose arrivals are counted."""

_MOST, _MOST_TOKENS = 12_000, 100_000_000
"""Requests of one simulation and tokens of their prompts and answers, for an answer within seconds
(ours); a longer load is cut."""

_LEAST, _FEWEST = 200, 50
"""Requests that a percentile is taken over, and of requests so long that these are too many tokens;
requests of which `_FEWEST` are too many are not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A fleet as simulated: seconds at the percentile at `share` of its rate, the first that keeps
    the objectives (`kept` is False where none did), and its times at the full rate. Of the replicas
    so many were simulated; `filled` is False where the load was too short to fill them."""

    fleet: Fleet
    share: float
    kept: bool
    ttft: float
    tpot: float
    e2e: float
    full: tuple[float, float, float]
    requests: int
    preemptions: int
    simulated_replicas: int
    filled: bool

    @property
    def chip_seconds(self) -> float:
        """Chip-seconds per request at the rate that keeps the objectives."""
        return self.fleet.chip_seconds / self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Simulated fleets in the order of their closed forms."""

    fleets: tuple[Confirmed, ...]

    @property
    def order(self) -> list[int]:
        """Places in `fleets`, those that keep the objectives first, cheapest first."""
        keys = [(not c.kept, c.chip_seconds) for c in self.fleets]
        return sorted(range(len(keys)), key=lambda i: keys[i])

    @property
    def reordered(self) -> bool:
        """Whether the simulation ranks the fleets in another order."""
        return self.order != list(range(len(self.fleets)))


def too_long(request: ServeRequest) -> str:
    """Why a request is not simulated, in words; nothing where it is."""
    tokens, most = request.input_length + request.output_length, _MOST_TOKENS // _FEWEST
    if tokens <= most:
        return ""
    return f"not simulated: a prompt and its answer have {tokens:,} tokens, over {most:,}"


def confirm(
    request: ServeRequest,
    fleets: Sequence[Fleet],
    goal: Objectives,
    *,
    trace: Sequence[Request] = (),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Confirmation:
    """Simulate every fleet at shares of its rate until the objectives are kept; of a trace as many
    requests as `_MOST` and `_MOST_TOKENS` allow."""
    found = []
    for number, fleet in enumerate(fleets):
        found.append(_confirmed(request, fleet, goal, trace, seed))
        if progress is not None:
            progress(number + 1, len(fleets))
    return Confirmation(fleets=tuple(found))


def _confirmed(
    request: ServeRequest, fleet: Fleet, goal: Objectives, trace: Sequence[Request], seed: int
) -> Confirmed:
    runs: list[tuple[float, np.ndarray, int, int]] = []
    for share in SHARES:
        times, requests, preemptions = simulated(request, fleet, share, trace, seed)
        runs.append((share, times, requests, preemptions))
        if np.all(times <= (goal.ttft, goal.tpot, goal.e2el)):
            break
    share, times, requests, preemptions = runs[-1]
    ttft, tpot, e2e = (float(t) for t in times)
    part, _ = part_of(fleet, _share(request, fleet))
    return Confirmed(
        fleet=fleet,
        share=share,
        kept=bool(np.all(times <= (goal.ttft, goal.tpot, goal.e2el))),
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        full=tuple(float(t) for t in runs[0][1]),  # type: ignore[arg-type]
        requests=requests,
        preemptions=preemptions,
        simulated_replicas=part.replicas + part.prefill_replicas,
        filled=bool(trace) or _share(request, part) >= 1,
    )


def _most(request: ServeRequest) -> int:
    """Requests of one simulation."""
    tokens = request.input_length + request.output_length
    return int(min(max(_MOST_TOKENS / tokens, _FEWEST), _MOST))


def _share(request: ServeRequest, fleet: Fleet, share: float = 1.0) -> float:
    """The part of a fleet's load, over times of one request, that may be simulated; at most 1."""
    most = _most(request)
    return most / max(_SPAN * fleet.e2e * fleet.rate * share, most)


def simulated(
    request: ServeRequest,
    fleet: Fleet,
    share: float = 1.0,
    trace: Sequence[Request] = (),
    seed: int = 0,
) -> tuple[np.ndarray, int, int]:
    """TTFT, TPOT and E2E at the percentile, the requests counted, and all preemptions."""
    most = _most(request)
    fleet, thinned = part_of(fleet, _share(request, fleet, share))
    rate = fleet.rate * share
    count = int(min(max(_SPAN * fleet.e2e * rate, _LEAST), most))
    load = poisson(rate, count, request.input_length, request.output_length, seed=seed)
    if trace:
        load = scaled(spread(trace, thinned)[:most], share)
    span = load[-1].arrival - load[0].arrival
    servers = fleet_of(fleet.plan(), request.cfg, fleet.piece, fleet.prefill_server.piece)
    outcome = simulate(load, servers, seed=seed)
    rows = [dict(zip(REQUEST_COLUMNS, r, strict=True)) for r in request_rows(outcome)]
    answered = [r for r in rows if not r["refusal"]]
    first, last = _FROM / _SPAN * span, _TO / _SPAN * span
    inside = [r for r in answered if first <= r["arrival_seconds"] <= last] or answered
    if not inside:
        return np.full(3, np.inf), 0, 0
    columns = ("ttft_seconds", "tpot_seconds", "e2el_seconds")
    times = [
        np.percentile([r[c] or 0.0 for r in inside], 100 * request.percentile) for c in columns
    ]
    return np.array(times), len(inside), sum(r["preemptions"] for r in rows)


def part_of(fleet: Fleet, share: float) -> tuple[Fleet, float]:
    """About `share` of the replicas of each pool, at least one, under the load that each has in
    the whole fleet, and the share of the rate that this is."""
    pools = [n for n in (fleet.replicas, fleet.prefill_replicas) if n]
    few = min(pools)
    kept = max(1, ceil(share * few)) / few
    if kept >= 1:
        return fleet, 1.0
    replicas, prefills = round(fleet.replicas * kept), round(fleet.prefill_replicas * kept)
    pairs = ((replicas, fleet.replicas), (prefills, fleet.prefill_replicas))
    kept = min(part / whole for part, whole in pairs if whole)
    return replace(
        fleet, replicas=replicas, prefill_replicas=prefills, rate=fleet.rate * kept
    ), kept


def spread(trace: Sequence[Request], share: float) -> list[Request]:
    """That share of the requests, evenly picked, at least one."""
    return [trace[int(i / share)] for i in range(max(1, int(len(trace) * share)))]


def traced(path: Path) -> tuple[list[Request], float, int, int]:
    """The requests of a trace, how many come per second, and their mean prompt and answer, which
    the closed forms go by."""
    found = read_trace(path, ServeScheduling().page_size)
    span = found[-1].arrival - found[0].arrival
    if not span:
        raise BadRequest(f"all requests of '{path}' come at once; give --rate instead")
    prompt, answer = (
        max(1, round(sum(values) / len(found)))
        for values in ([r.prompt for r in found], [r.output for r in found])
    )
    return found, (len(found) - 1) / span, prompt, answer


def confirmation_result(found: Confirmation) -> dict[str, Any]:
    """Stable names of a confirmation."""
    return {
        "reordered": found.reordered,
        "order": found.order,
        "fleets": [
            {
                "slice": str(c.fleet.piece),
                "mesh": c.fleet.server.mesh,
                "layout": c.fleet.layout,
                "kept": c.kept,
                "share_of_rate": c.share,
                "requests": c.requests,
                "simulated_replicas": c.simulated_replicas,
                "filled": c.filled,
                "preemptions": c.preemptions,
                **_times("analytic", (c.fleet.ttft, c.fleet.tpot, c.fleet.e2e)),
                **_times("simulated", c.full),
                "chip_seconds_per_request": c.chip_seconds,
            }
            for c in found.fleets
        ],
    }


def _times(kind: str, times: tuple[float, float, float]) -> dict[str, dict[str, float]]:
    names = ("ttft_seconds", "tpot_seconds", "e2e_seconds")
    return {kind: dict(zip(names, times, strict=True))}


def _how(c: Confirmed) -> str:
    """What of a fleet and of its load was simulated, where that is not all."""
    said, every = [], c.fleet.replicas + c.fleet.prefill_replicas
    if c.simulated_replicas < every:
        said.append(f"{c.simulated_replicas:,} of {every:,} servers, with their share of the load")
    if not c.filled:
        said.append("too few requests to fill them, so times under load are longer")
    return f" ({'; '.join(said)})" if said else ""


def confirmation_lines(found: Confirmation) -> list[str]:
    """What the simulation says, for a person."""
    lines = []
    for c in found.fleets:
        said = "keeps the objectives"
        if not c.kept:
            said = f"misses them even at {c.share:.0%} of the rate"
        elif c.share < 1:
            said = f"keeps them at {c.share:.0%} of the rate, so tokens cost {sig(1 / c.share)}x"
        lines.append(
            f"{c.fleet} {said}: simulated TTFT "
            f"{format_seconds(c.full[0])}, TPOT {format_seconds(c.full[1])} for "
            f"{format_seconds(c.fleet.ttft)}, {format_seconds(c.fleet.tpot)}{_how(c)}"
        )
    if found.reordered:
        best = found.fleets[found.order[0]].fleet
        lines.append(f"the simulation reorders the front: the cheapest is {best}")
    return lines
