"""Export a plan file: read what it names, check the plan against it, write it for a target."""

from dataclasses import dataclass
from pathlib import Path

from shardwise.boundary.options import Option
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import GivenPlan, given_plan
from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.planner.checks import check_plan
from shardwise.planner.export import EXPORTERS, export_plan, parse_export
from shardwise.planner.export.notes import UNSAID
from shardwise.planner.export.serving import (
    SERVE_EXPORTERS,
    export_serve,
    given_fields,
    parse_serve,
    serves,
)
from shardwise.planner.serve.answer import check_serve_plan
from shardwise.plans import ServePlan, TrainPlan

FROM = Option(
    about="The program whose file is read, where the file's keys do not say it.",
    metavar="TARGET",
    group="Files",
    meaning="the software that wrote an export",
)
MODEL_OF_FILE = Option(about="The model, where the file that is read does not say it.")
CHIPS_OF_FILE = Option(about="The chips, where the file that is read does not say them.")
"""Options of the commands that read another program's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text for a target, and the choices that the target will not carry out."""

    plan: TrainPlan | ServePlan
    text: str
    not_expressed: list[str]


def export_given(what: GivenPlan, target: str) -> Exported:
    """A plan, that in a file, or of `audit:NAME`.

    Raises BadRequest for a target of the other kind of plan, a plan that does not suit its model or
    slice, and a choice that the target cannot run.
    """
    plan = given_plan(what)
    cfg = load_model(plan.model)
    piece = Hardware(constants=plan.constants).of_plan(plan).slice(plan.slice).slice
    served = isinstance(plan, ServePlan)
    kind, fit = ("serving", SERVE_EXPORTERS) if served else ("training", EXPORTERS)
    if target not in fit and target in {**EXPORTERS, **SERVE_EXPORTERS}:
        named = f"'{what}'" if isinstance(what, str | Path) else "this"
        raise BadRequest(
            f"{named} is a {kind} plan, which {target} does not run; export it to {', '.join(fit)}"
        )
    if isinstance(plan, ServePlan):
        check_serve_plan(plan, cfg, piece)
        text = export_serve(plan, cfg, piece, target)
    else:
        check_plan(plan, cfg, piece)
        text = export_plan(plan, cfg, piece, target)
    lines = [line for line in text.splitlines() if line.startswith(UNSAID)]
    return Exported(
        plan=plan, text=text, not_expressed=[line.removeprefix(UNSAID) for line in lines]
    )


def parse_text(
    text: str,
    target: str,
    model: str | Path | None = None,
    on: str | None = None,
    lengths: tuple[int | None, int | None] = (None, None),
) -> TrainPlan | ServePlan:
    """The plan that an exported text says; `model`, `on` and the `lengths` of prompts and answers
    say what it leaves out. Raises BadRequest for one that does not suit its model or slice."""
    cfg = None if model is None else load_model(model)
    piece = None if on is None else Hardware().slice(on).slice
    if target in SERVE_EXPORTERS and (target not in EXPORTERS or serves(text)):
        given = given_fields(None if model is None else str(model), cfg, piece, lengths)
        return parse_serve(text, target, given)
    if any(lengths):
        raise BadRequest("--input and --output are for a server's file; leave them out")
    named = None if cfg is None else (str(model), cfg)
    plan = parse_export(text, target, model=named, piece=piece)
    held = Hardware(constants=plan.constants).of_plan(plan).slice(plan.slice).slice
    cfg = cfg or load_model(plan.model)
    EXPORTERS[target].check(text, cfg)
    check_plan(plan, cfg, held)
    return plan
