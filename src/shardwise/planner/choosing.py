"""The program that a training plan is for: the one that was asked for, or one that users of the
chip run.

A program that cannot run what is fixed (the model, the chip, a dtype, a pinned degree) is passed
over. Among several programs the one with the fastest plan is taken. The answer also shows the best
plan without any limit of software, if it is faster: a search for faster plans alone leaves out most
others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.search.request import Ground, TrainRequest
from shardwise.planner.search.space import spoken
from shardwise.planner.training import TrainPlanning
from shardwise.plans.software import Candidates, Obstacle

Planned = Callable[[TrainRequest, int], TrainPlanning]
"""Plans a request, with so many of the next best meshes."""
WORTH_SAYING = 0.99
"""A plan outside the program is said where it takes at most this share of the time, and where
predictions tell it from the program's fastest."""


def plan_for(
    groups: Sequence[Sequence[TrainRequest]], planned: Planned, top: int, outside: bool = True
) -> TrainPlanning:
    """The best plan of the first group with a program that runs what is fixed and has a legal mesh.
    If no program of several has one, the best plan without a program.

    Its `outside` is the best plan without a program, if that is faster and asked for. Raises
    BadRequest with every obstacle where a single program was asked for and cannot.
    """
    able = [ready for group in groups if (ready := [r for r in group if not obstacles_of(r)])]
    asked = len(groups) == 1 and groups[0][0].software is not None
    if asked and not able:
        raise BadRequest(cannot(groups[0][0]))
    if not asked:
        able.append([replace(groups[0][0], software=None)])
    planning = _first(able, planned, top)
    beyond = _outside(planning, planned) if outside else None
    asked_for = replace(planning.request, ground=None)  # of what searches share none is left
    return replace(planning, request=asked_for, outside=beyond)


def _first(groups: Sequence[Sequence[TrainRequest]], planned: Planned, top: int) -> TrainPlanning:
    """The planning of the first group that has a legal mesh. A program whose plans do not fit is
    not passed over: the next would take chips that it has no use for."""
    miss: BadRequest | None = None
    for requests in groups:
        try:
            return _fastest(requests, planned, top)
        except BadRequest as error:
            miss = miss or error
    assert miss is not None
    raise miss


def cannot(request: TrainRequest) -> str:
    """The sentence for a program that no plan of what is fixed is written for: what the program
    itself may be made to train beyond that is not known here."""
    assert request.software is not None
    lines = [f"shardwise cannot write this plan for {request.software.title}:"]
    lines += [f"  {obstacle}" for obstacle in obstacles_of(request)]
    return "\n".join([*lines, "  or use --for any for the best plan, even if no program runs it"])


def obstacles_of(request: TrainRequest) -> list[Obstacle]:
    """What the program cannot run of what is fixed: the model, the chip, choices and pins."""
    if request.software is None:
        return []
    first = {name: values[0] for name in request.searched if (values := _known(request, name))}
    return request.software.obstacles(
        Candidates(
            cfg=request.cfg,
            piece=request.piece,
            structure=replace(request.structure, **first),
            degrees=request.pins,
            microbatches=1,
            sequences=request.sequences,
            sequence_length=request.sequence_length,
            box=request.piece.shape,
            slices=1,
        )
    )


def _known(request: TrainRequest, name: str) -> tuple:
    """The values of a choice that may be tried, those with a word first."""
    assert request.software is not None
    words = request.software.words.get(name, {})
    return tuple(
        sorted(spoken(request, name, request.searched[name]), key=lambda v: v not in words)
    )


def _fastest(requests: Sequence[TrainRequest], planned: Planned, top: int) -> TrainPlanning:
    """The planning with the fastest plan; the later programs are looked at for faster ones only."""
    best: TrainPlanning | None = None
    miss: NoFeasiblePlan | BadRequest | None = None
    for request in requests:
        limit = best.fastest_rank if best and best.margin_kept else request.better_than
        try:
            found = planned(replace(request, better_than=limit, ground=Ground()), top)
        except (NoFeasiblePlan, BadRequest) as error:
            miss = miss or error
            continue
        if best is None or _order(found) < _order(best):
            best = found
    if best is None:
        assert miss is not None
        raise miss
    return best


def _order(planning: TrainPlanning) -> tuple[bool, float]:
    """Programs whose plans keep the margin of memory first."""
    return not planning.margin_kept, planning.fastest_rank


def _outside(planning: TrainPlanning, planned: Planned) -> TrainAnswer | None:
    """The best plan of any, priced by the same stack, where it is faster."""
    request = planning.request
    if request.software is None:
        return None
    limit = planning.fastest_rank * min(WORTH_SAYING, 1 / (1 + request.apart))
    try:
        found = planned(replace(request, software=None, better_than=limit), 0)
    except (NoFeasiblePlan, BadRequest):
        return None
    return found.best if found.best_rank < limit else None
