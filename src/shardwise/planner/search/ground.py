"""The ground of a search: the candidates of a part of the slice, laid out, with what is priced of
them.

Searches for several programs, and for the simplest of the plans that one of them has found, look at
masks of the same candidates. What a part of a step costs, and what no plan goes below, is priced on
the ground once for all of them.
"""

from dataclasses import dataclass, replace
from math import inf

from shardwise.planner.search.columns import Columns
from shardwise.planner.search.leaves import StepParts
from shardwise.planner.search.request import Ground, TrainRequest
from shardwise.planner.search.space import candidates_of
from shardwise.plans.train import Placing, Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """The candidates of a part of the slice as one placing lays them out, and their parts."""

    placing: Placing
    columns: Columns
    parts: StepParts


_KEPT = 3  # parts of the slice, the first that are looked at: of hundreds memory would grow


def places_of(
    request: TrainRequest, box: tuple[int, ...], structure: Structure
) -> tuple[int, list[LaidOut]]:
    """How many meshes x microbatches were enumerated on a box, and the legal candidates, of any
    program. All numbers that count reads of a `structure` are those of every other one. Requests on
    one ground find the places of those before that differ in nothing but the program, and in what
    is asked of a plan once it is priced."""
    ground, base = request.ground or Ground(), _base(request)
    for known, there, looked, places in ground.known:
        if there == box and known == base:
            return looked, places
    looked, laid, columns = candidates_of(base, box)
    places = []
    for placing, on in laid.items():
        mine = columns.take(on.which[columns.mesh] >= 0)
        mine = replace(mine, mesh=on.which[mine.mesh])
        parts = StepParts(base, on.meshes, mine, structure, box)
        places.append(LaidOut(placing=placing, columns=mine, parts=parts))
    if len(ground.known) < _KEPT:
        ground.known.append((base, box, looked, places))
    return looked, places


def _base(request: TrainRequest) -> TrainRequest:
    """What the places of a request depend on."""
    return replace(
        request,
        software=None,
        better_than=inf,
        max_hbm_bytes=inf,
        objective="time",
        shift=None,
        margin=0.0,
        apart=0.0,
        ground=None,
    )
