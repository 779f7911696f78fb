"""Objective "smallest": the first slice that serves a model within its targets, and its best plans.

Targets bound the expected times of an idle server, as `answer.py` defines them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from shardwise.errors import BadRequest, NoFeasiblePlan, ShardwiseError
from shardwise.hardware import Slice
from shardwise.planner.serve.answer import ServeAnswer, evaluate_serve
from shardwise.planner.serve.misses import misfit, no_slice_fits, targets_missed
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.search import Point, SliceFound, front, search_slice
from shardwise.plans import ServePlan

_WIDER = (2, 4, 8)
"""Slices of so many times the chosen chips are searched too, for the Pareto front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSmall:
    """A slice that was passed over, and why."""

    piece: Slice
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlanning:
    """The best plan, other meshes on its slice, the slices passed over, the Pareto front over all
    slices looked at, and how many candidates were priced. `densest` is the point within the targets
    with most tokens per second and chip on any slice looked at."""

    request: ServeRequest
    best: ServeAnswer
    runners_up: tuple[ServeAnswer, ...]
    too_small: tuple[TooSmall, ...]
    front: tuple[Point, ...]
    densest: Point
    candidates: int

    @property
    def plan(self) -> ServePlan:
        """The plan to save, to simulate or to export."""
        return self.best.plan


def smallest(request: ServeRequest, top: int = 3) -> ServerPlanning:
    """Take the slices in turn until one holds the model and meets the targets; on it, the mesh and
    batch with most tokens per second. Raises NoFeasiblePlan with the nearest miss."""
    searched: list[SliceFound] = []
    passed: list[TooSmall] = []
    good: list[Point] = []
    for piece in request.pieces:
        found = search_slice(request, piece)
        searched.append(found)
        good = _within(request, found.points)
        if good:
            break
        passed.append(TooSmall(piece=piece, why=misfit(request, found)))
    if not good:
        raise _refusal(request, searched)
    chosen = good[: top + 1]
    wider = _wider(request, chosen[0].server.piece)
    searched += [search_slice(request, piece, exact=False) for piece in wider]
    best, *others = (answer_of(point) for point in chosen)
    points = [p for found in searched for p in found.points]
    return ServerPlanning(
        request=request,
        best=best,
        runners_up=tuple(others),
        too_small=tuple(passed),
        front=front(points),
        densest=_within(request, points)[0],
        candidates=len(points),
    )


def _refusal(request: ServeRequest, searched: Sequence[SliceFound]) -> ShardwiseError:
    """No mesh divides the model: a bad request. Too little memory or time: no feasible plan."""
    if all(found.need == inf for found in searched):
        return BadRequest(no_slice_fits(request, searched))
    if any(found.points for found in searched):
        return NoFeasiblePlan(targets_missed(request, searched))
    return NoFeasiblePlan(no_slice_fits(request, searched))


def _within(request: ServeRequest, points: Sequence[Point]) -> list[Point]:
    """The best point within the targets of every mesh, most tokens per second first; ties go to the
    faster step."""
    ranked = sorted(
        (p for p in points if request.goal.met(*p.times)),
        key=lambda p: (-p.tokens_per_second_per_chip, p.times[1], p.memory),
    )
    best: dict[tuple[tuple[str, int], ...], Point] = {}
    for point in ranked:
        best.setdefault(tuple(point.server.mesh.items()), point)
    return list(best.values())


def _wider(request: ServeRequest, chosen: Slice) -> list[Slice]:
    """The first slices of at least 2, 4 and 8 times the chips."""
    wider: dict[int, Slice] = {}
    for times in _WIDER:
        for piece in request.pieces:
            if piece.chips >= times * chosen.chips:
                wider.setdefault(piece.chips, piece)
                break
    return list(wider.values())


def answer_of(point: Point) -> ServeAnswer:
    """A point of the search, priced again as a plan."""
    server, request = point.server, point.server.request
    plan = server.plan(batch=point.batch, chunk=request.chunks[0])
    return evaluate_serve(plan, request.cfg, server.piece, utilisation=request.utilisation)
