"""`book quiz`: a number of the book, asked; and whether an answer is right."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar

from shardwise.book.questions import BookAnswer, Input, agrees, book_answer, entries, rounds_to
from shardwise.boundary import Command
from shardwise.boundary.options import option, place
from shardwise.boundary.records import Record, hidden
from shardwise.commands.base.answer import Answer, Page, Row
from shardwise.commands.base.layout import WIDTH, Fact, Facts, next_step, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.book_show import (
    Numbers,
    RuleStep,
    inputs_table,
    number_text,
    read_value,
    step_of,
    steps_table,
)
from shardwise.commands.tables.book_words import CHAPTER
from shardwise.errors import BadRequest, ShardwiseError, shown
from shardwise.units import DAY, YEAR, parse_bytes, parse_count, parse_seconds

LEAST_TOLERANCE = 0.01
"""A quiz takes an answer that is as close as this, or what the book prints where that is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookQuizRequest(Command):
    """A number of the book to compute yourself: a question without `answers`, a check with them.

    `entry_id` names it; without one `seed` draws it. `answers` are in the order of their units.
    """

    COMMAND: ClassVar[str] = "book quiz"

    entry_id: str | None = field(
        default=None, kw_only=False, metadata=place("[ID]", required=False)
    )
    answers: str | Sequence[float] | float | None = option(
        "Your answer, such as 0.017,1880.",
        flag="--answer",
        metavar="NUMBERS",
        group="What is planned",
    )
    chapter: str | int | None = option(CHAPTER)
    seed: int = option(
        "Draws the question.", default=0, show_default=True, kind="whole", least=0, most=2**32 - 1
    )

    def answer(self, progress: Progress | None = None) -> "BookQuiz | BookQuizChecked":
        """Ask, or check."""
        found = book_answer(self.entry_id or _drawn(self.chapter, self.seed))
        asked = found.entry
        units = [asked.unit] * len(found.values) if isinstance(asked.unit, str) else asked.unit
        given = _given(self.answers, units)
        question = BookQuiz(
            id=asked.id,
            asks=asked.asks,
            source=asked.source,
            unit=asked.unit,
            numbers=len(found.values),
            inputs=list(found.inputs.values()),
            tolerance=LEAST_TOLERANCE,
            found=found,
        )
        if given is None:
            return question
        if len(given) != len(found.values):
            raise BadRequest(
                f"--answer has {len(given)} of the {len(found.values)} numbers that '{asked.id}' "
                f"asks for, in this order, with commas between: {asked.asks}"
            )
        right = [
            agrees(mine, true, LEAST_TOLERANCE) or mine in known
            for mine, true, known in zip(given, found.values, _printed_right(found), strict=True)
        ]
        return BookQuizChecked.of(
            question,
            given=given,
            right=right,
            answer=found.value,
            steps=[step_of(worked) for worked in found.steps],
            note=asked.note,
        )


def _printed_right(found: BookAnswer) -> list[list[float]]:
    """Of each number what the book prints, where it is that number rounded."""
    printed = found.entry.printed()
    prints = printed if isinstance(printed, list) else [printed]
    return [
        [p] if p is not None and rounds_to(true, p) else []
        for true, p in zip_longest(found.values, prints)
    ]


@dataclass(frozen=True, kw_only=True)
class Question(Record):
    """A number of the book to work out."""

    id: str
    """The entry."""
    asks: str
    """The question."""
    source: str
    """Where the book has it."""
    unit: str | Sequence[str]
    """The unit of the answer, or of each number."""
    numbers: int
    """How many numbers the answer has."""
    inputs: Sequence[Input]
    """Inputs of the computation."""
    tolerance: float
    """The share by which an answer may be off."""

    found: BookAnswer = hidden()

    def question(self) -> Page:
        """What is asked, and its inputs."""
        yield wrapped(f"{self.id} ({self.source}): {self.asks}")
        yield inputs_table(self.inputs).within(WIDTH)


@dataclass(frozen=True, kw_only=True, repr=False)
class BookQuiz(Answer, Question):
    """A question."""

    def table(self) -> list[Row]:
        """Nothing: no number was given."""
        return []

    def page(self) -> Page:
        """The question and its inputs, and what to type."""
        yield from self.question()
        units = self.unit if isinstance(self.unit, str) else ", ".join(self.unit)
        several = f" Give {self.numbers} numbers, in the order of the question."
        yield wrapped(f"Answer in {units}.{several if self.numbers > 1 else ''}")
        answer = f"--answer {_placeholders(self.numbers)}"
        yield next_step("check yours:", f"shardwise book quiz {self.id} {answer}")


@dataclass(frozen=True, kw_only=True, repr=False)
class BookQuizChecked(Answer, Question):
    """A question with an answer: whether that is right, and why."""

    given: Sequence[float]
    """The numbers that were given."""
    right: Sequence[bool]
    """Whether each is right."""
    answer: Numbers
    """The right values."""
    steps: Sequence[RuleStep]
    """How they are worked out."""
    note: str
    """Why the book's number differs; "" where there is nothing to say."""

    def table(self) -> list[Row]:
        """One row per number that was given."""
        return [
            {"given": mine, "answer": true, "right": right}
            for mine, true, right in self._compared()
        ]

    def page(self) -> Page:
        """The question and its inputs, the verdict and the steps."""
        yield from self.question()
        yield Facts([*self._verdicts(), *([Fact("note", self.note)] if self.note else [])])
        yield steps_table(self.found.steps).within(WIDTH)

    def _verdicts(self) -> list[Fact]:
        return [
            Fact(
                "right" if right else "wrong",
                f"{number_text(mine)}; it is {number_text(true)}",
                "good" if right else "bad",
            )
            for mine, true, right in self._compared()
        ]

    def _compared(self) -> Iterable[tuple[float, float, bool]]:
        """Of each number what was given, what it is, and whether that is right."""
        return zip(self.given, self.found.values, self.right, strict=True)


book_quiz = verb("book_quiz", BookQuizRequest)


def _placeholders(numbers: int) -> str:
    """What stands for so many numbers in a command.

    >>> _placeholders(1), _placeholders(3)
    ('NUMBER', 'NUMBER,NUMBER,NUMBER')
    """
    return ",".join(["NUMBER"] * numbers)


def _drawn(chapter: str | int | None, seed: int) -> str:
    wanted = None if chapter is None else str(chapter)
    known = [e.id for e in entries().values() if wanted in (None, e.chapter) and e.can_be_asked]
    if not known:
        chapters = ", ".join(dict.fromkeys(e.chapter for e in entries().values()))
        raise BadRequest(f"chapter '{wanted}' has no questions; there are {chapters}")
    return random.Random(seed).choice(known)


def _given(
    answers: str | Sequence[float] | float | None, units: Sequence[str]
) -> list[float] | None:
    """The numbers that were given, in the units of the question."""
    if answers is None:
        return None
    if not isinstance(answers, str):
        return list(answers) if isinstance(answers, Sequence) else [answers]
    words = answers.split(",")
    known = [units[min(i, len(units) - 1)] if units else "" for i in range(len(words))]
    return [in_unit(word, unit) for word, unit in zip(words, known, strict=True)]


def in_unit(word: str, unit: str) -> float:
    """A number that a person wrote, alone or with a unit, as so many of `unit`.

    >>> [in_unit(*one) for one in (("310 ms", "s"), ("1.6 GB", "bytes"), ("40 %", "ratio"))]
    [0.31, 1600000000.0, 0.4]
    >>> in_unit("1.2 TB/s", "bytes/s"), in_unit("197 TFLOP/s", "FLOP/s"), in_unit("3 d", "days")
    (1200000000000.0, 197000000000000.0, 3.0)
    """
    text = word.strip()
    value = read_value(text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return _with_unit(text, unit)
    except ShardwiseError:
        in_words = f" in {unit}" if unit else ""
        raise BadRequest(
            f"--answer is {shown(word)}; it is a number{in_words}, or one with its unit such as "
            "310 ms, 16 GB, 40 % or 4Mi, and several have commas between"
        ) from None


def _with_unit(text: str, unit: str) -> float:
    if unit == "ratio" and text.endswith("%"):
        return parse_count(text[:-1]) / 100
    if unit in _SECONDS:
        short = text.replace("days", "d").replace("years", "y")
        return parse_seconds(short) / _SECONDS[unit]
    size, per, _ = unit.partition("/")
    if size == "bytes" and text.endswith(f"B{per and '/s'}"):
        return parse_bytes(text.removesuffix("/s"))
    return parse_count(text.removesuffix(unit))


_SECONDS = {"s": 1.0, "days": DAY, "years": YEAR}
"""Units of times, in which answers are asked for."""
