"""What the file of a training plan leaves out is searched, with all that it says pinned.

A person writes model, slice, mesh, batch and length, and whatever else matters to them. The rest is
what a search of plans takes on this mesh: of the programs that the plan may be for the simplest of
the plans that predictions cannot tell from the fastest, with memory left. Where no plan fits it is
the one that needs the least memory; where a search would not look at such a mesh at all
(`search/legality.py`), it is each choice's default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import Slice
from shardwise.models import ModelConfig, load_model
from shardwise.planner.choosing import obstacles_of, plan_for
from shardwise.planner.evaluate import plan_of
from shardwise.planner.search.loop import search
from shardwise.planner.search.request import SEARCHED, TrainRequest
from shardwise.planner.training import TrainPlanning, plan_train
from shardwise.plans import MESH_AXES, ServePlan, TrainPlan, handwritten, handwritten_serve
from shardwise.plans.chip_changes import ChipChanges
from shardwise.plans.files import FORMER_KEY, Begun, begun_plans, chip_changes, served_plan_from
from shardwise.plans.software import candidates_of_plan
from shardwise.plans.train import CHOICES, PLACINGS, Structure

NUMBERS = ("microbatches", "virtual_stages", "placement")
"""What a search chooses beside `SEARCHED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A plan without gaps, and which of its choices were searched."""

    plan: TrainPlan
    searched: frozenset[str] = frozenset()


def open_choices(written: Mapping[str, Any]) -> frozenset[str]:
    """The choices that a file with these keys leaves to a search."""
    said = {*written, *(["weight_gather"] if FORMER_KEY in written else [])}
    return frozenset((*SEARCHED, *NUMBERS)) - said


def completed(
    begun: tuple[tuple[Begun, ...], ...], written: Mapping[str, Any], piece: Slice
) -> Completed:
    """The plan that a person began, for each program that it may be for, with what the keys of its
    file leave open. The same file gives the same plan."""
    open_, cfg = open_choices(written), load_model(begun[0][0][1].model)
    groups = [[_request(row, plan, open_, cfg, piece) for row, plan in group] for group in begun]
    found = _searched(groups)
    if not open_ or found is None:
        return Completed(plan=_first_that_runs(begun, cfg, piece))
    if "layers_per_stage" in written:
        found = replace(found, layers_per_stage=begun[0][0][1].layers_per_stage)
    return Completed(plan=found, searched=open_)


def finished(
    values: Mapping[str, Any],
    origin: str,
    slice_of: Callable[[str, str | None, ChipChanges], Slice],
) -> tuple[TrainPlan | ServePlan, frozenset[str]]:
    """The plan of a file's values, what a person left out searched or worked out, and which choices
    were searched. `slice_of` reads a slice under the file's constants and what it keeps of its
    chips."""

    def read(text: str) -> Slice:
        constants = str(values["constants"]) if "constants" in values else None
        return slice_of(text, constants, chip_changes(values.get("chips"), origin))

    if handwritten_serve.is_handwritten(values) or not handwritten.is_handwritten(values):
        return served_plan_from(values, origin, read), frozenset()
    begun = begun_plans(values, origin, read)
    found = completed(begun, values, read(str(values["slice"])))
    return found.plan, found.searched


def _searched(groups: list[list[TrainRequest]]) -> TrainPlan | None:
    """The best plan, or the leanest where none fits; None where none is looked at."""
    try:
        return plan_for(groups, _planned, 0, outside=False).best.plan
    except NoFeasiblePlan:
        able = [r for group in groups for r in group if not obstacles_of(r)] or groups[0]
        nearest = ((request, search(request, 1).nearest) for request in able)
        return next((plan_of(request, found) for request, found in nearest if found), None)
    except BadRequest:
        return None


def _planned(request: TrainRequest, top: int) -> TrainPlanning:
    return plan_train(request, top=top)


def _request(
    row: Any, plan: TrainPlan, open_: frozenset[str], cfg: ModelConfig, piece: Slice
) -> TrainRequest:
    chip = piece.chip
    pinned = {name: (getattr(plan, name),) for name in SEARCHED if name not in open_}
    said = {name: (getattr(plan, name),) for name in NUMBERS if name not in open_}
    request = TrainRequest(
        cfg=cfg,
        model=plan.model,
        piece=piece,
        sequences=plan.global_batch_sequences,
        sequence_length=plan.sequence_length,
        pins={axis: plan.degree(axis) for axis in MESH_AXES},
        max_hbm_bytes=chip.usable_bytes_per_device,
        searched=SEARCHED | pinned,
        structure=Structure(**{name: getattr(plan, name) for name in CHOICES}),
        microbatches=said.get("microbatches", ()),
        software=row,
        chips=plan.chips,
        part=(plan.slices, plan.box),
        placings=said.get("placement", PLACINGS),
        chunks=said.get("virtual_stages", ()),
    )
    return request.as_told_apart


def _first_that_runs(
    begun: tuple[tuple[Begun, ...], ...], cfg: ModelConfig, piece: Slice
) -> TrainPlan:
    """The plan as it began, for the first program that runs it; for none in particular where none
    does and it names none."""
    plans = [one for group in begun for one in group]
    for row, plan in plans:
        if row is None or not row.obstacles(candidates_of_plan(plan, cfg, piece)):
            return plan
    first = plans[0][1]
    return first if len(plans) == 1 else replace(first, software="any")
