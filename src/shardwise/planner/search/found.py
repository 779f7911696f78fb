"""What a search of training plans finds, and by what it ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from shardwise.models.flops import model_flops_per_token
from shardwise.planner.search.choices import Key, Simplicity, simplicity
from shardwise.planner.search.request import TrainRequest
from shardwise.plans.train import Placing, Structure

STRATEGIES = 6
"""At most this many plans are shown for their strategy alone."""
_TIE = 1e-10  # of a chip per second: among plans on equally many chips the fastest is best


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One candidate as the search saw it. `rank` is what the objective makes smallest."""

    slices: int
    box: tuple[int, ...]
    placement: Placing
    mesh: Mapping[str, int]
    microbatches: int
    structure: Structure
    seconds: float
    memory: float
    rank: float

    def simplicity(self, kept: float) -> Simplicity:
        """What the rules of `choices.py` make smallest, where `kept` bytes keep the margin."""
        beyond = max(self.memory - kept, 0.0)
        return simplicity(self.mesh, self.structure, self.microbatches, beyond, self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """How much was looked at. A candidate is a legal plan with memory and all bounds computed.

    `best` are the best that fit, one per mesh, and the best of each of the best strategies (sets of
    mesh axes in use); `by_choice` the best that was priced for every value of each choice
    (`choices.py`); `nearest` is the plan that needs the least memory where none fits.
    """

    enumerated: int
    legal: int
    candidates: int
    seconds: float
    best: tuple[Found, ...]
    by_choice: Mapping[Key, Found]
    nearest: Found | None


def rank_of(request: TrainRequest, chips: int, seconds):
    """What the objective makes smallest: seconds; chip-seconds of the chips in use (the price of a
    chip-hour is the same for all plans); or chips, and seconds among plans on equally many."""
    if request.objective == "cost":
        return chips * seconds
    if request.objective == "chips":
        return chips + np.minimum(seconds, 1e9) * _TIE
    return seconds


def seconds_of(request: TrainRequest, chips: int, rank: float) -> float:
    """The seconds with which a plan on so many chips would have a rank: `rank_of` turned round."""
    if request.objective == "cost":
        return rank / chips
    if request.objective == "chips":
        return inf if rank >= chips + 0.5 else max(rank - chips, 0.0) / _TIE
    return rank


def distinct(found: list[Found], keep: int) -> tuple[Found, ...]:
    """The best plan of the best meshes, and of the best strategies, best first."""
    by_mesh: dict[tuple[tuple[str, int], ...], Found] = {}
    by_strategy: dict[tuple[str, ...], Found] = {}
    for f in found:
        by_mesh.setdefault(tuple(f.mesh.items()), f)
        by_strategy.setdefault(tuple(f.mesh), f)
    chosen = {
        id(f): f for f in [*list(by_mesh.values())[:keep], *list(by_strategy.values())[:STRATEGIES]]
    }
    return tuple(sorted(chosen.values(), key=lambda f: f.rank))


def ideal_seconds(request: TrainRequest, chips: int) -> float:
    """Model FLOPs of the step at the peak of so many chips: no plan on them is faster."""
    length, peak = (
        request.sequence_length,
        request.piece.chip.peak(request.structure.dtypes.compute),
    )
    trained = request.structure.trains_component
    flops = float(model_flops_per_token(request.cfg, length, causal=True, trained=trained))
    return flops * (request.sequences * length) / (chips * peak)
