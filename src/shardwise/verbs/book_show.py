"""`book show` and `book quiz`: one number of the book, worked out live, or asked."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, ClassVar

from shardwise.book.figure_index import figure_ids
from shardwise.book.questions import (
    BookAnswer,
    BookEntry,
    Edition,
    Worked,
    agrees,
    book_answer,
    entries,
    off_by,
    plain,
    rounds_to,
)
from shardwise.book.registry import rule
from shardwise.boundary import Command, command_of, spelt
from shardwise.boundary.arguments import once
from shardwise.errors import BadRequest, shown
from shardwise.plans.named import audit_names
from shardwise.units import sig
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.layout import Fact, Facts, Verbatim, next_step, wrapped
from shardwise.verbs.request import Progress, verb

LEAST_TOLERANCE = 0.01
"""A quiz takes an answer that is as close as this, or what the book prints where that is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookShowRequest(Command):
    """One number of the book: inputs, the steps to it, what the book prints, and why it differs.

    `sets` are other values of its inputs ("F=30000"), or a mapping of them. `edition` is "latest"
    or "first", `constants` those of its chips: "book", "seed" (the first edition's) or "vendor".
    """

    COMMAND: ClassVar[str] = "book show"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("entry_id",)

    entry_id: str = field(kw_only=False)
    sets: Sequence[str] | Mapping[str, Any] = ()
    edition: Edition = "latest"
    constants: str | None = None

    def answer(self, progress: Progress | None = None) -> "BookShown":
        """Work it out."""
        given = read_sets(self.sets)
        found = book_answer(
            self.entry_id, set=given, edition=self.edition, constants=self.constants
        )
        sets = {**{name: _text(value) for name, value in given.items()}, **_example(found.entry)}
        result = _result(found) | {"command": command_of(self, sets=sets)}
        return BookShown(found=found, result=result, resolved=_resolved(found))


@dataclass(frozen=True, kw_only=True, repr=False)
class BookShown(LooseAnswer):
    """One number, or a few, worked out."""

    found: BookAnswer

    def table(self) -> list[Row]:
        """One row per step."""
        return [
            {key: step[key] for key in ("name", "function", "formula", "value")}
            for step in self.result["steps"]
        ]

    def page(self) -> Page:
        """The question, the answer beside the book's, the inputs, the steps, and the commands."""
        asked = self.found.entry
        yield wrapped(f"{asked.id} ({asked.source}): {asked.asks}")
        yield Facts(_facts(self.found))
        yield _inputs_table(self.found.inputs.values())
        yield _steps_table(self.found.steps)
        if not looked_up(asked):
            yield next_step("ask it with other numbers:", self.result["command"])

    def sections(self) -> Mapping[str, Page]:
        """The Python that gives the same, and a command for each step."""
        return {"detail": _python_page(self.found)}


book_show = verb("book_show", BookShowRequest)


def read_sets(sets: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
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
        raise BadRequest(f"{shown(word)} is no number to compute with; give a finite one")
    return int(word) if word.lstrip("+-").isdigit() else found


def _result(found: BookAnswer) -> dict[str, Any]:
    asked = found.entry
    printed = asked.printed(found.edition)
    return {
        "id": asked.id,
        "chapter": asked.chapter,
        "kind": asked.kind,
        "asks": asked.asks,
        "source": asked.source,
        "edition": found.edition,
        "constants": found.constants,
        "inputs": [
            {"name": one.name, "value": one.value, "unit": one.unit}
            for one in found.inputs.values()
        ],
        "steps": [_step(worked) for worked in found.steps],
        "answer": found.value,
        "unit": asked.unit,
        "book": {"latest": asked.book, "first": asked.printed("first")},
        "correct": asked.correct,
        "tolerance": asked.tolerance,
        "agrees": _verdict(found, printed),
        "erratum": erratum(asked),
        "note": asked.note,
        "function": f"shardwise.book.{asked.steps[-1].rule}",
        "command": "",
        "commands": [text for worked in found.steps if (text := _command(worked))],
        "elsewhere": _elsewhere(found),
        "python": found.python(),
    }


def _verdict(found: BookAnswer, printed: Any) -> bool | None:
    """Whether the answer is what an edition prints, rounded to the digits printed; None where it
    prints none, or of other inputs."""
    if printed is None or found.changed:
        return None
    return rounds_to(found.value, printed)


def erratum(asked: BookEntry) -> bool:
    """Whether the latest edition prints another number than the rules give."""
    return asked.status == "book_wrong"


def _resolved(found: BookAnswer) -> dict[str, Any]:
    return {
        one.name: {
            "value": one.value,
            "source": "given" if one.name in found.changed else f"the book, {found.entry.source}",
        }
        for one in found.inputs.values()
    }


def _step(worked: Worked) -> dict[str, Any]:
    one = rule(worked.step.rule)
    return {
        "name": worked.step.name,
        "function": f"shardwise.book.{one.name}",
        "formula": one.formula,
        "unit": one.unit,
        "arguments": plain(worked.given),
        "value": plain(worked.value),
    }


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
    if looked_up(asked):
        facts.append(Fact("", "looked up: a measurement that the book prints, which no rule gives"))
    if printed is None:
        facts.append(Fact("book", "prints no number"))
    else:
        differs = f", off by {max(off_by(found.values, printed), 1e-3):.1%}".replace("%", " %")
        said_so = {True: ", which agrees", False: differs, None: ""}[verdict]
        text = f"{_numbers_text(printed)} ({found.edition} edition){said_so}"
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


def _inputs_table(inputs: Any) -> TextTable:
    rows = [[one.name, value_text(one.value), one.unit] for one in inputs]
    return TextTable(["input", "value", "unit"], rows, left=1, ruled=False)


def _steps_table(steps: Sequence[Worked]) -> TextTable:
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


# Quiz ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BookQuizRequest:
    """A number of the book to work out oneself: asked without `answers`, checked with them.

    `entry_id` names it; without one `seed` draws it, of one `chapter` or of all. `answers` are the
    numbers in the order of their units, "0.017,1880" or a list.
    """

    entry_id: str | None = field(default=None, kw_only=False)
    answers: str | Sequence[float] | float | None = None
    chapter: str | int | None = None
    seed: int = 0

    def answer(self, progress: Progress | None = None) -> "BookQuiz":
        """Ask, or check."""
        found = book_answer(self.entry_id or _drawn(self.chapter, self.seed))
        asked, given = found.entry, _given(self.answers)
        result: dict[str, Any] = {
            "id": asked.id,
            "asks": asked.asks,
            "source": asked.source,
            "unit": asked.unit,
            "numbers": len(found.values),
            "inputs": _result(found)["inputs"],
            "tolerance": LEAST_TOLERANCE,
        }
        if given is None:
            return BookQuiz(found=found, result=result)
        if len(given) != len(found.values):
            raise BadRequest(
                f"--answer has {len(given)} numbers and '{asked.id}' asks for "
                f"{len(found.values)}; give them with commas between"
            )
        right = [
            agrees(mine, true, LEAST_TOLERANCE) or mine in known
            for mine, true, known in zip(given, found.values, _printed_right(found), strict=True)
        ]
        checked = {"given": given, "right": right, "answer": found.value, "steps": []}
        checked["steps"] = [_step(worked) for worked in found.steps]
        return BookQuiz(found=found, result={**result, **checked, "note": asked.note})


def _printed_right(found: BookAnswer) -> list[list[float]]:
    """Of each number what the book prints, where it is that number rounded."""
    printed = found.entry.printed()
    prints = printed if isinstance(printed, list) else [printed]
    return [
        [p] if p is not None and rounds_to(true, p) else []
        for true, p in zip_longest(found.values, prints)
    ]


@dataclass(frozen=True, kw_only=True, repr=False)
class BookQuiz(LooseAnswer):
    """A question, and with an answer whether that is right, and why."""

    found: BookAnswer

    @property
    def asked_only(self) -> bool:
        """Whether no answer was given yet."""
        return "right" not in self.result

    def table(self) -> list[Row]:
        """One row per number that was given."""
        if self.asked_only:
            return []
        numbers = zip(self.result["given"], self.found.values, self.result["right"], strict=True)
        return [{"given": mine, "answer": true, "right": right} for mine, true, right in numbers]

    def page(self) -> Page:
        """The question and its inputs; then the verdict and the steps."""
        asked = self.found.entry
        yield wrapped(f"{asked.id} ({asked.source}): {asked.asks}")
        yield _inputs_table(self.found.inputs.values())
        if self.asked_only:
            units = asked.unit if isinstance(asked.unit, str) else ", ".join(asked.unit)
            yield f"Answer in {units}."
            yield next_step("check yours:", f"shardwise book quiz {asked.id} --answer NUMBER")
            return
        yield Facts([*self._verdicts(), *([Fact("note", asked.note)] if asked.note else [])])
        yield _steps_table(self.found.steps)

    def _verdicts(self) -> list[Fact]:
        return [
            Fact("right" if row["right"] else "wrong", _compared(row), _TONES[row["right"]])
            for row in self.table()
        ]


_TONES: Mapping[bool, Any] = {True: "good", False: "bad"}

book_quiz = verb("book_quiz", BookQuizRequest)


def _compared(row: Row) -> str:
    return f"{number_text(row['given'])}; it is {number_text(row['answer'])}"


def _drawn(chapter: str | int | None, seed: int) -> str:
    wanted = None if chapter is None else str(chapter)
    known = [e.id for e in entries().values() if wanted in (None, e.chapter)]
    if not known:
        chapters = ", ".join(dict.fromkeys(e.chapter for e in entries().values()))
        raise BadRequest(f"chapter '{wanted}' has no questions; there are {chapters}")
    return random.Random(seed).choice(known)


def _given(answers: str | Sequence[float] | float | None) -> list[float] | None:
    if answers is None:
        return None
    found = read_value(answers) if isinstance(answers, str) else answers
    numbers = [found] if isinstance(found, int | float) else found
    if isinstance(numbers, str) or not all(isinstance(n, int | float) for n in numbers):
        raise BadRequest(f"--answer is {shown(answers)}; it is a number, or numbers with commas")
    return list(numbers)
