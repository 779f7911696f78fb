"""`book show`: one number of the book, worked out live."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from shardwise.book.figure_index import figure_ids
from shardwise.book.questions import (
    BookAnswer,
    BookEntry,
    Edition,
    Input,
    InputValue,
    Worked,
    book_answer,
    off_by,
    plain,
    rounds_to,
)
from shardwise.book.registry import rule
from shardwise.boundary import Command, command_of, spelt
from shardwise.boundary.arguments import once
from shardwise.boundary.options import option, place
from shardwise.boundary.records import Record, hidden
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.layout import Fact, Facts, Verbatim, next_step, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.book_words import EDITION, EDITION_CONSTANTS, OTHER_VALUES
from shardwise.errors import BadRequest, shown
from shardwise.plans.named import audit_names
from shardwise.units import sig


@dataclass(frozen=True, slots=True, kw_only=True)
class BookShowRequest(Command):
    """One number of the book: inputs, steps, the value in the book, and why it differs. `constants`
    "seed" are those of the first edition."""

    COMMAND: ClassVar[str] = "book show"

    entry_id: str = field(kw_only=False, metadata=place("ID"))
    sets: Sequence[str] | Mapping[str, Any] = option(OTHER_VALUES)
    edition: Edition = option(EDITION)
    constants: str | None = option(EDITION_CONSTANTS)

    def answer(self, progress: Progress | None = None) -> "BookShown":
        """Work it out."""
        given = cast("Mapping[str, InputValue]", read_sets(self.sets))
        found = book_answer(
            self.entry_id, set=given, edition=self.edition, constants=self.constants
        )
        sets = {**{name: _text(value) for name, value in given.items()}, **_example(found.entry)}
        return _shown(found, command_of(self, sets=sets))


@dataclass(frozen=True, kw_only=True)
class RuleStep(Record):
    """A step to an answer: a rule for its arguments."""

    name: str
    """Its name."""
    function: str
    """The Python function that computes it."""
    formula: str
    """Its formula."""
    unit: str
    """The unit of its value; "" where it has none."""
    arguments: Mapping[str, Any]
    """Arguments of the step."""
    value: Any
    """Result: a number, numbers, or numbers by name."""


Numbers = float | Sequence[float]
"""One number, or several in the order of their units."""


@dataclass(frozen=True, kw_only=True)
class PrintedNumbers(Record):
    """What each edition of the book prints; null where it prints none."""

    latest: Numbers | None
    """The latest edition."""
    first: Numbers | None
    """The first edition."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BookShown(Answer):
    """One number, or a few, worked out."""

    id: str
    """The entry."""
    chapter: str
    """The chapter that it is in."""
    kind: str
    """Kind in the book: an exercise, a headline number, a measurement."""
    asks: str
    """The question."""
    source: str
    """Where the book has it."""
    edition: Edition
    """The edition whose inputs it has."""
    constants: str
    """Whose numbers for the chips."""
    inputs: Sequence[Input]
    """Inputs of the computation."""
    steps: Sequence[RuleStep]
    """How."""
    answer: Numbers
    """The answer."""
    unit: str | Sequence[str]
    """Its unit, or that of each number."""
    book: PrintedNumbers
    """Value in the book."""
    correct: Numbers
    """The answer for the book's inputs, worked out independently."""
    tolerance: float
    """Relative rounding error that the printed value may have."""
    agrees: bool | None
    """Whether the answer is what the edition prints, rounded to its digits; null where it prints
    none, or of other inputs."""
    erratum: bool
    """Whether the latest edition prints another number than the rules give."""
    note: str
    """Why the book's number differs; "" where there is nothing to say."""
    function: str
    """The Python function of the last step."""
    command: str
    """The command that asks it with other numbers."""
    commands: Sequence[str]
    """A command for each step."""
    elsewhere: Sequence[str]
    """Other commands that show the same."""
    python: str
    """Python that gives the answer."""

    found: BookAnswer = hidden()

    def table(self) -> list[Row]:
        """One row per step."""
        return [
            {key: getattr(step, key) for key in ("name", "function", "formula", "value")}
            for step in self.steps
        ]

    def page(self) -> Page:
        """The question, the answer beside the book's, the inputs, the steps, and the commands."""
        asked = self.found.entry
        yield wrapped(f"{asked.id} ({asked.source}): {asked.asks}")
        yield Facts(_facts(self.found))
        yield inputs_table(self.found.inputs.values())
        yield steps_table(self.found.steps)
        if not looked_up(asked):
            yield next_step("ask it with other numbers:", self.command)

    def sections(self) -> Mapping[str, Page]:
        """The Python that gives the same, and a command for each step."""
        return {"detail": _python_page(self.found)}


book_show = verb("book_show", BookShowRequest)


def read_sets(sets: Sequence[str] | Mapping[str, object]) -> dict[str, object]:
    """Values by name, of texts NAME=VALUE. Raises BadRequest for a text without =, and for a name
    that comes twice with two values."""
    if isinstance(sets, Mapping):
        return dict(sets)
    found = []
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise BadRequest(f"--set is {shown(text)}; it is NAME=VALUE, such as F=30000")
        found.append((name, read_value(value)))
    return once(found, "--set")


def read_value(text: str) -> Any:
    """A number, numbers with commas between, true or false, else the text itself."""
    if text in ("true", "false"):
        return text == "true"
    words = text.split(",")
    if all(word in ("true", "false") for word in words):
        return [word == "true" for word in words]
    numbers = [_number(word) for word in words]
    if any(number is None for number in numbers):
        return text
    return numbers if len(numbers) > 1 else numbers[0]


def _number(word: str) -> float | None:
    try:
        found = float(word)
    except ValueError:
        return None
    if found != found or found in (float("inf"), float("-inf")):
        raise BadRequest(f"{shown(word)} is not a number to compute with; give a finite one")
    return int(word) if word.lstrip("+-").isdigit() else found


def _shown(found: BookAnswer, command: str) -> BookShown:
    asked = found.entry
    return BookShown.part_of(
        asked,
        edition=found.edition,
        constants=found.constants,
        inputs=list(found.inputs.values()),
        steps=[step_of(worked) for worked in found.steps],
        answer=found.value,
        book=PrintedNumbers(latest=asked.book, first=asked.printed("first")),
        agrees=_verdict(found, asked.printed(found.edition)),
        erratum=erratum(asked),
        function=f"shardwise.book.{asked.steps[-1].rule}",
        command=command,
        commands=[text for worked in found.steps if (text := _command(worked))],
        elsewhere=_elsewhere(found),
        python=found.python(),
        found=found,
        resolved=_resolved(found),
    )


def _verdict(found: BookAnswer, printed: Any) -> bool | None:
    """Whether the answer is what an edition prints, rounded to the digits printed; None where it
    prints none, or of other inputs."""
    if printed is None or found.changed:
        return None
    return rounds_to(found.value, printed)


def erratum(asked: BookEntry) -> bool:
    """Whether the latest edition prints another number than the rules give."""
    return asked.status == "book_wrong"


def _resolved(found: BookAnswer) -> dict[str, Resolved]:
    return {
        one.name: Resolved(
            value=one.value,
            origin="--set" if one.name in found.changed else "the book",
            source="given" if one.name in found.changed else f"the book, {found.entry.source}",
        )
        for one in found.inputs.values()
    }


def step_of(worked: Worked) -> RuleStep:
    """A step that was worked out, as the document has it."""
    one = rule(worked.step.rule)
    return RuleStep(
        name=worked.step.name,
        function=f"shardwise.book.{one.name}",
        formula=one.formula,
        unit=one.unit,
        arguments=plain(worked.given),
        value=plain(worked.value),
    )


def _example(asked: BookEntry) -> dict[str, str]:
    """An input to change, as --set takes it: the first number doubled, or the first text."""
    one = next((i for i in asked.inputs.values() if i.numeric), None)
    one = one or next(iter(asked.inputs.values()))
    return {one.name: _text(_doubled(one.value) if one.numeric else one.value)}


def _doubled(value: Any) -> Any:
    return [_doubled(item) for item in value] if isinstance(value, list) else 2 * value


def _command(worked: Worked) -> str:
    """The command of a step whose arguments are plain; empty for others."""
    words = []
    for name, value in plain(worked.given).items():
        if name in ("mesh", "sizes") and isinstance(value, Mapping):
            value = ",".join(f"{axis}={degree}" for axis, degree in value.items())
        if isinstance(value, Mapping) or (name == "cfg") or _nested(value):
            return ""
        words.append(f"{name}={_text(value)}")
    return spelt("book rule", [worked.step.rule], {"--set": words})


def _elsewhere(found: BookAnswer) -> list[str]:
    """Other commands that show the same: a figure, a chip's catalogue, an audited plan."""
    said = []
    said += [
        f"shardwise book figure {name}"
        for name in figure_ids()
        if found.entry.id == name or found.entry.id.startswith(f"{name}.")
    ][-1:]
    if any(worked.step.rule in OF_A_CATALOGUE for worked in found.steps):
        constants = "vendor" if found.constants == "vendor" else "book"
        chips = dict.fromkeys(one.value for one in found.inputs.values() if one.unit == "chip")
        said += [f"shardwise hw show {chip} --constants {constants}" for chip in chips]
    name = found.entry.id.rpartition("megatron.")[2].lower()
    if f"megatron-{name}" in audit_names():
        said.append(f"shardwise plan show audit:megatron-{name}")
    return said


OF_A_CATALOGUE = ("chip_number", "dense_peak", "domain_of", "fat_tree", "pod_totals")
"""Rules that read the catalogue."""


def _nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, list | Mapping) for item in value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return str(int(value)) if whole else str(value)


_EXACT = 2**53
"""Whole floats below this are the integers that they print as."""


# The page -----------------------------------------------------------------------------------------


def _facts(found: BookAnswer) -> list[Fact]:
    asked = found.entry
    printed = asked.printed(found.edition)
    verdict = _verdict(found, printed)
    tone = {True: "good", False: "bad" if erratum(asked) else "tight", None: ""}[verdict]
    facts = [Fact("answer", said(found.values, asked.unit))]
    if found.changed:
        names = ", ".join(found.changed)
        facts.append(Fact("", f"of other inputs than the question above states: {names}"))
    if looked_up(asked):
        facts.append(Fact("", "looked up: a measurement that the book prints, which no rule gives"))
    if printed is None:
        facts.append(Fact("book", "prints no number"))
    else:
        differs = f", off by {max(off_by(found.values, printed), 1e-3):.1%}".replace("%", " %")
        said_so = {True: ", which agrees", False: differs, None: ""}[verdict]
        own = ", of its own inputs" if found.changed else ""
        text = f"{_numbers_text(printed)} ({found.edition} edition){own}{said_so}"
        facts.append(Fact("book", text, tone))  # type: ignore[arg-type]
    if found.edition == "latest" and asked.first is not None:
        facts.append(Fact("", f"{_numbers_text(asked.first)} in the first edition"))
    if asked.note:
        facts.append(Fact("erratum" if erratum(asked) else "note", asked.note))
    return facts


def looked_up(asked: BookEntry) -> bool:
    """Whether nothing is computed: each step reads what was published."""
    return all(step.rule == "published" for step in asked.steps)


def said(values: Sequence[float], unit: str | Sequence[str]) -> str:
    """Numbers with their unit, or units."""
    if isinstance(unit, str):
        return f"{', '.join(map(number_text, values))} {unit}"
    return ", ".join(f"{number_text(v)} {u}" for v, u in zip(values, unit, strict=True))


def _numbers_text(value: Any) -> str:
    return ", ".join(map(number_text, value if isinstance(value, list) else [value]))


def number_text(value: float) -> str:
    """Six digits, with an exponent from ten million on, as the book writes bytes and FLOPs."""
    return f"{value:.6g}" if abs(value) >= _LARGE else sig(value, 6)


_LARGE = 1e7


def inputs_table(inputs: Any) -> TextTable:
    """What a number is worked out from."""
    rows = [[one.name, value_text(one.value), one.unit] for one in inputs]
    return TextTable(["input", "value", "unit"], rows, left=1, ruled=False)


def steps_table(steps: Sequence[Worked]) -> TextTable:
    """The steps to it."""
    rows = []
    for worked in steps:
        one = rule(worked.step.rule)
        rows.append([worked.step.name, one.name, one.formula, value_text(plain(worked.value))])
    return TextTable(["step", "rule", "formula", "gives"], rows, left=3, ruled=False)


def value_text(value: Any) -> str:
    """A plain value on one line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, list):
        return ", ".join(map(value_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(item)}" for name, item in value.items())
    return str(value)


def _python_page(found: BookAnswer) -> Page:
    yield "The same in Python:"
    yield Verbatim(found.python())
    yield ""
    yield "Each step alone, and what else shows it:"
    for text in [*filter(None, map(_command, found.steps)), *_elsewhere(found)]:
        yield Verbatim(f"  {text}")
