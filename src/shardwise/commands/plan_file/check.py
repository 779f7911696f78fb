"""`check`: a launch script or a recipe read, priced, and what to change in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from shardwise.boundary import Command, spelt
from shardwise.boundary.options import option, place
from shardwise.commands.base.answer import Resolved
from shardwise.commands.base.inputs import FAMILY, Hardware, Words, pairs, whole_number
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.plan_file.changes import (
    MOST_CHANGES,
    FileChange,
    changes_of,
    margin_of,
    usable_of,
)
from shardwise.commands.plan_file.export import EXPORT_BYTES
from shardwise.commands.plan_file.exported import CHIPS_OF_FILE, FROM, MODEL_OF_FILE, parse_text
from shardwise.commands.plan_file.failure import failed_step, failure_in
from shardwise.commands.plan_file.file_checked import FileChecked
from shardwise.commands.pricing.lacking import reading_options, with_own
from shardwise.commands.pricing.plans import price_plan, program_text
from shardwise.errors import BadRequest, Gives, Lacking, Remark
from shardwise.models.zoo import with_family
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.export import EXPORTERS
from shardwise.planner.export.edit import has_use_for, with_given, without_given
from shardwise.planner.export.known_flags import dialect_named, target_of, unread_notes
from shardwise.planner.export.trainer import TARGETS as TRAINERS
from shardwise.planner.export.trainer import taken_apart
from shardwise.planner.export.trainer.dialects import Dialect, dialects
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import flat_plan
from shardwise.results.train import priced_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest(Command):
    """Check a launch file: whether its plan fits, its step time, and the changes that help most.

    `path` is a bash script, or a recipe in YAML, TOML or Python, of a program that `export --from`
    reads. Raises BadRequest for a file without a training plan, and names missing values.
    """

    COMMAND: ClassVar[str] = "check"

    path: str | Path = field(kw_only=False, metadata=place(kind="file"))
    from_: str | None = option(FROM)
    model: str | Path | None = option(MODEL_OF_FILE)
    on: str | None = option(CHIPS_OF_FILE)
    as_: str | None = option(FAMILY, before="on")
    given: Words = option(
        "A value that the file does not set itself: a variable of a script, an argument by number, "
        "or a key of a YAML file; may be repeated.",
        default=(),
        kind="several",
        flag="--given",
        metavar="NAME=VALUE",
        group="Files",
    )
    error: str | Path | None = option(
        "Text of an out-of-memory error from a run of it: a file, or - for standard input.",
        metavar="FILE",
        group="Files",
    )
    apply: int | str | None = option(
        "Write the file with change N applied, from 1.",
        metavar="N",
        group="Files",
    )

    def answer(self, progress: Progress | None = None) -> FileChecked:
        """Read, price, and look at the plans near it."""
        if self.as_ and not self.model:
            raise BadRequest("--as sets how --model is read; give --model too")
        path = Path(self.path)
        text = program_text(path, "the launch file", most=EXPORT_BYTES)
        if given := pairs(self.given, "--given", "NAME=VALUE", "TP=8"):
            idle = [name for name in given if not has_use_for(text, name, given)]
            if idle:
                raise BadRequest(
                    f"--given {idle[0]} has no effect: the script sets {idle[0]} itself, or does "
                    "not use it; change it in the script, or leave --given out"
                )
            text = with_given(text, given)
        target = self.from_ or target_of(text)
        if target is None or target not in EXPORTERS:
            raise BadRequest(_no_program(path, target))
        number = None if self.apply is None else _number(self.apply)
        model = None if self.model is None else with_family(self.model, self.as_)
        plan = self._read(text, target, model)
        if not isinstance(plan, TrainPlan):
            raise BadRequest(f"'{path}' starts a server; check reads training files")
        priced = price_plan(plan, Hardware(constants=plan.constants))
        answer: TrainAnswer = priced.answer
        failure = None if self.error is None else failure_in(self.error)
        changes = changes_of(text, path.name, target, answer, failure)
        notes = unread_notes(text, target)
        return FileChecked.of(
            priced_plan(answer),
            file=str(path),
            program=named.name if (named := _dialect(text, target)) else target,
            model=plan.model,
            tokens_per_step=plan.tokens,
            sequence_length=plan.sequence_length,
            global_batch_sequences=plan.global_batch_sequences,
            fits=failure is None and answer.peak_bytes_per_chip <= usable_of(answer),
            failed=failure and failed_step(failure, answer),
            margin=margin_of(answer),
            not_understood=[str(line) for line in notes if not isinstance(line, Remark)],
            without_effect=[str(line) for line in notes if isinstance(line, Remark)],
            changes=changes,
            priced_answer=answer,
            text=_applied(changes, number, text, path.name),
            resolved={k: Resolved(value=v, origin="file") for k, v in flat_plan(plan).items()},
            warnings=priced.warnings,
        )

    def _read(self, text: str, target: str, model: str | Path | None) -> TrainPlan | ServePlan:
        """The plan of the file; BadRequest with the command that says what it leaves out."""
        try:
            return parse_text(text, target, model, self.on)
        except Lacking as error:
            said = {Gives.MODEL.value: model, Gives.SLICE.value: self.on}
            given = {option: str(value) for option, value in said.items() if value is not None}
            options = reading_options(text, target, given)
            own = {"--from": self.from_} if self.from_ else {}
            named = pairs(self.given, "--given", "NAME=VALUE", "TP=8")
            kept = {"--given": [f"{name}={value}" for name, value in named.items()]}
            way = spelt("check", [self.path], {**own, **options, **kept})
            raise BadRequest(f"{error}, {with_own(options, given)}:\n`{way}`") from None


def _dialect(text: str, target: str) -> Dialect | None:
    """The program whose keys a Trainer's text has."""
    return dialect_named(text) if target in TRAINERS else None


def _no_program(path: Path, target: str | None) -> str:
    known = ", ".join(EXPORTERS)
    if target is None:
        plan = spelt("plan show", [path], {})
        said = f"the program of '{path}' is not known; name it with --from ({known})"
        if path.suffix == ".py":
            return (
                f"{said}. A Python file is read if it sets the arguments of TRL's SFTConfig or of "
                "transformers' TrainingArguments itself; else give the command that starts it, or "
                "its YAML file"
            )
        own = ", ".join(row.title for row in dialects().values() if row.marks)
        return (
            f"{said}. Files of {own} need no --from: they are known by their keys. For a plan file "
            f"of shardwise, ask `{plan}`"
        )
    return f"--from is '{target}'; it takes {known}"


def _number(given: int | str) -> int:
    return whole_number(given, "--apply", least=1, most=MOST_CHANGES)


def _applied(changes: Sequence[FileChange], number: int | None, text: str, name: str) -> str:
    """The file with a change; BadRequest where there are not so many, or it is of another file."""
    if number is None:
        return ""
    if number > len(changes):
        raise BadRequest(f"--apply is {number}; {len(changes)} changes were found")
    before, after = (
        taken_apart(without_given(text), name),
        taken_apart(changes[number - 1].text, name),
    )
    others = [file for file in before if before[file] != after[file] and file != name]
    if others:
        raise BadRequest(
            f"change {number} is in {', '.join(others)}, which '{name}' names; apply its diff"
        )
    return after[name]


check = verb("check", CheckRequest)
