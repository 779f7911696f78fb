"""Export a plan file: read what it names, check the plan against it, write it for a target."""

from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.planner.export import export_plan
from shardwise.planner.export.notes import UNSAID
from shardwise.planner.training import check_plan
from shardwise.plans import TrainPlan, load_plan
from shardwise.workflows.audits import plan_path, with_neighbour
from shardwise.workflows.inputs import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text for a target, and the choices that the target will not carry out."""

    plan: TrainPlan
    text: str
    not_expressed: list[str]


def export_file(path: Path, target: str) -> Exported:
    """The plan in a file, or of `audit:NAME`.

    Raises BadRequest for a serving plan, one that does not suit its model or slice, and a choice
    that the target cannot run.
    """
    path = plan_path(str(path))
    plan = with_neighbour(load_plan(path), path)
    if not isinstance(plan, TrainPlan):
        raise BadRequest(f"'{path}' is a serving plan; only training plans are exported")
    cfg = load_model(plan.model)
    piece = Hardware(constants=plan.constants).slice(plan.slice).slice
    check_plan(plan, cfg, piece)
    text = export_plan(plan, cfg, piece, target)
    lines = [line for line in text.splitlines() if line.startswith(UNSAID)]
    return Exported(
        plan=plan, text=text, not_expressed=[line.removeprefix(UNSAID) for line in lines]
    )
