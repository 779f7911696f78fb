"""`export`: a plan in the words of another framework or launcher, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from shardwise.boundary import Command, spelt
from shardwise.boundary.options import option, place
from shardwise.boundary.records import hidden
from shardwise.commands.base.answer import Answer, Page, Resolved, Row
from shardwise.commands.base.inputs import FAMILY, whole_number
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.plan_file.exported import (
    CHIPS_OF_FILE,
    FROM,
    MODEL_OF_FILE,
    export_given,
    parse_text,
)
from shardwise.commands.pricing.plans import GivenPlan, program_text, unfit_notes
from shardwise.errors import BadRequest
from shardwise.models.zoo import with_family
from shardwise.planner.export import EXPORTERS
from shardwise.planner.export.known_flags import unread_notes
from shardwise.planner.export.serving import SERVE_EXPORTERS, unread_flags
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import flat_plan, plan_dict
from shardwise.plans.servers import SERVING_SOFTWARE

TARGETS = tuple(dict.fromkeys((*EXPORTERS, *SERVE_EXPORTERS)))
EXPORT_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest(Command):
    """Write a plan for another program, or read a plan from a file of that program.

    `path` is a plan's file, "audit:NAME" or a plan, and `to` the program ("maxtext"). Or `path` is
    a file of the program `from_`. This may be any of its own files: MaxText's YAML with a
    model_name, TorchTitan's module or flags, Megatron's arguments, TRL's launch line or YAML,
    axolotl's YAML. Files that it names are also read, if they lie beside it. Raises BadRequest for
    a plan that the program cannot run, and names missing values.
    """

    COMMAND: ClassVar[str] = "export"

    path: GivenPlan = field(kw_only=False, metadata=place(kind="file"))
    to: str | None = option(
        "Write the plan for this target.",
        metavar="TARGET",
        group="Files",
        meaning="the software that an export is for",
    )
    from_: str | None = option(FROM)
    model: str | Path | None = option(MODEL_OF_FILE)
    on: str | None = option(CHIPS_OF_FILE)
    as_: str | None = option(FAMILY, before="on")
    input: int | str | None = option(
        "With --from: tokens of a prompt, where the file does not say it."
    )
    output: int | str | None = option(
        "With --from: tokens of an answer, where the file does not say it."
    )

    def answer(self, progress: Progress | None = None) -> "PlanWritten | PlanRead":
        """The text for the program, or the plan that a text says."""
        if self.as_ and not self.model:
            raise BadRequest("--as says how --model is read; give that too")
        if self.from_ is None and (self.model or self.on or self.input or self.output):
            raise BadRequest(
                "--model, --on, --input and --output say what a file leaves out; they go "
                "with --from"
            )
        if self.to is not None and self.from_ is None:
            return self._written(self.to)
        if self.from_ is not None and self.to is None and isinstance(self.path, str | Path):
            return self._read(Path(self.path), self.from_)
        raise BadRequest(f"give either --to or --from, one of {'|'.join(TARGETS)}")

    def _written(self, target: str) -> "PlanWritten":
        made = export_given(self.path, target)
        lost = made.not_expressed
        return PlanWritten(
            target=target,
            text=made.text,
            not_expressed=lost,
            value=made.plan,
            resolved={k: Resolved(value=v, origin="file") for k, v in flat_plan(made.plan).items()},
            warnings=[
                *(f"the {target} file cannot say {line}" for line in lost),
                *priced_for_another(made.plan, target, self.path),
            ],
        )

    def _read(self, path: Path, origin: str) -> "PlanRead":
        text = program_text(path, "the export", most=EXPORT_BYTES)
        model = None if self.model is None else with_family(self.model, self.as_)
        lengths = (_tokens(self.input, "--input"), _tokens(self.output, "--output"))
        plan = parse_text(text, origin, model, self.on, lengths)
        served = unread_flags(text, origin) if isinstance(plan, ServePlan) else []
        notes = [*unread_notes(text, origin), *served, *unfit_notes(plan)]
        return PlanRead(plan=flat_plan(plan), value=plan, warnings=notes)


def _tokens(given: int | str | None, option: str) -> int | None:
    return None if given is None else whole_number(given, option, least=1)


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanExport(Answer):
    """A plan, as text of another program or from it."""

    output: str | None = None
    """The file that was written (-o); null where there is none."""

    value: TrainPlan | ServePlan = hidden()

    def table(self) -> list[Row]:
        """Every choice of the plan."""
        return [{"choice": name, "value": value} for name, value in flat_plan(self.value).items()]


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanWritten(PlanExport):
    """A plan in the words of another program."""

    target: str
    """The program."""
    text: str
    """Text of the file."""
    not_expressed: Sequence[str]
    """Choices of the plan that it will not carry out."""

    def page(self) -> Page:
        """The text."""
        yield self.text.removesuffix("\n")


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanRead(PlanExport):
    """A plan that was read from the text of another program."""

    plan: Mapping[str, Any]
    """Every choice by its dotted name."""

    @property
    def text(self) -> str:
        """The plan's file."""
        return yaml.safe_dump(plan_dict(self.value), sort_keys=False)

    def page(self) -> Page:
        """The plan's file."""
        yield self.text.removesuffix("\n")


def priced_for_another(plan: TrainPlan | ServePlan, target: str, path: GivenPlan) -> list[str]:
    """A line where a serving plan's times are those of another server than it is written for."""
    row = SERVING_SOFTWARE.get(target)
    if row is None or not isinstance(plan, ServePlan) or row.is_priced_by(plan.engine):
        return []
    said = f"the plan's times are those of {plan.engine}, not of {target}"
    file = path if isinstance(path, str | Path) else "FILE"
    way = spelt("plan show", [file], {"--set": f"engine={row.engine}"})
    return [f"{said}: `{way}` has those"]


export = verb("export", ExportRequest)
