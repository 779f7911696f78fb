"""The book: each of its numbers worked out, step by step, and a quiz."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, entry, flag, text
from shardwise.apps.page.figures import KeyFigure, TableData, cell
from shardwise.apps.page.lectures import LECTURES
from shardwise.apps.page.view import Drawn, PageView, ViewLink, refused
from shardwise.book import entries
from shardwise.boundary.records import Record
from shardwise.commands.base.answer import Answer
from shardwise.commands.tables.book_quiz import BookQuiz, BookQuizChecked
from shardwise.commands.tables.book_show import BookShown, RuleStep
from shardwise.units import format_binary, format_count, format_rate, format_seconds, many

IDS = tuple(entries())
ASKS = tuple(one.asks for one in entries().values())
ELSEWHERE = {"deck": "Slides", "notes": "Notes", "12": "GPUs"}
CHAPTERS = tuple(ELSEWHERE.get(c, f"Chapter {c}") for c in (e.chapter for e in entries().values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BookState(ViewState):
    """The controls of the view."""

    id: str = choice("Number", IDS, IDS[0], words=ASKS, under=CHAPTERS)
    quiz: bool = flag("Ask me")
    answer: str = entry("My answer", "", about="Such as 310 ms; several with commas. Enter.")
    hint: bool = flag("Hint", about="With Ask me: the formulas.")
    edition: str = choice("Edition", ("latest", "first"), "latest", group="Whose numbers")
    constants: str = choice("Constants", ("book", "seed", "vendor"), "book", group="Whose numbers")
    set: str = text(
        "With other numbers", "", about="Such as params=7e9 chips=8; or type into the table."
    )


def _calls(state: BookState) -> list[VerbCall]:
    if state.quiz and entries()[state.id].can_be_asked:
        keywords = {"answers": state.answer or None}
        calls = [VerbCall(verb="book_quiz", given=(state.id,), keywords=keywords)]
        hint = [VerbCall(verb="book_show", given=(state.id,))] if state.hint else []
        return [*calls, *hint]
    sets = dict(word.split("=", 1) for word in _sets(state.set)) or None
    keywords = {"edition": state.edition, "constants": state.constants, "sets": sets}
    return [VerbCall(verb="book_show", given=(state.id,), keywords=keywords)]


def _sets(text: str) -> list[str]:
    for word in (words := text.split()):
        if "=" not in word:
            raise refused("set", word, "it is NAME=VALUE, with blanks between", "write params=7e9")
    return words


def _draw(state: BookState, answers: Sequence[Answer]) -> Drawn:
    found = answers[0]
    assert isinstance(found, BookShown | BookQuiz | BookQuizChecked)
    steps = () if isinstance(found, BookQuiz) else found.steps
    inputs = _table("Inputs", found.inputs, ("name", "value", "unit"))
    if isinstance(found, BookShown):
        inputs = replace(inputs, edits="set")
    return Drawn(
        says=_sentence(found),
        key=_key(found),
        right=all(found.right) if isinstance(found, BookQuizChecked) else None,
        tables=[inputs, *([_worked(steps)] if steps else [])],
        lines=[*_lines(found), *_hint(answers[1:]), *_not_asked(state)],
        links=[_next(state), *_lecture(state)],
        formula="; ".join(step.formula for step in steps),
        source=found.source,
    )


def _sentence(found: BookShown | BookQuiz | BookQuizChecked) -> str:
    """What the number is, with it where it is not asked for."""
    if not isinstance(found, BookShown):
        return found.asks
    return f"{found.asks.removesuffix('.')}: {_amount(found.answer, found.unit)}."


def _key(found: BookShown | BookQuiz | BookQuizChecked) -> list[KeyFigure]:
    """The answer where it is one number; of a question the unit to answer in."""
    if isinstance(found, BookQuiz):
        within = f"within {found.tolerance:.0%}"
        return [KeyFigure(label="your answer", value="?", unit=_said(found.unit), note=within)]
    if not isinstance(found.answer, int | float):
        return []
    return [KeyFigure(label="answer", value=found.answer, unit=_said(found.unit))]


def _worked(steps: Sequence[RuleStep]) -> TableData:
    """Each step: its formula, what stands for its letters, and what it gives."""
    rows = [
        [one.name, one.formula, _cell(one.arguments), _cell(one.value), one.unit] for one in steps
    ]
    return TableData(title="Steps", header=("name", "formula", "with", "value", "unit"), rows=rows)


def _hint(shown: Sequence[Answer]) -> list[str]:
    found = [step for one in shown if isinstance(one, BookShown) for step in one.steps]
    return [f"Hint: {'; then '.join(step.formula for step in found)}."] if found else []


def _not_asked(state: BookState) -> list[str]:
    asked = entries()[state.id].can_be_asked
    why = "This one is not asked: it was measured, or is an error of rounding."
    return [] if asked or not state.quiz else [why]


def _lecture(state: BookState) -> list[ViewLink]:
    chapter = entries()[state.id].chapter.replace("12", "gpus")
    link = ViewLink(text="Lecture of this chapter", view=VIEW.name, state={}, lecture=chapter)
    return [link] if chapter in LECTURES else []


def _next(state: BookState) -> ViewLink:
    """The next question of the chapter, from the last on the first."""
    here = entries()[state.id]
    own = [one.id for one in entries().values() if one.chapter == here.chapter]
    place = own.index(state.id)
    asked = [
        name for name in (*own[place + 1 :], *own[: place + 1]) if entries()[name].can_be_asked
    ]
    state_ = {"id": asked[0] if asked else state.id, "quiz": "yes"}
    text = "Next question" if state.quiz else "Ask me a question of this chapter"
    return ViewLink(text=text, view=VIEW.name, state=state_)


def _lines(found: BookShown | BookQuiz | BookQuizChecked) -> list[str]:
    """Of a question what to type, then whether it is right, and what is; else what is printed."""
    units = _said(found.unit)
    if isinstance(found, BookQuiz):
        return [f"{many(found.numbers, 'number')} in {units}, within {found.tolerance:.0%}."]
    if isinstance(found, BookQuizChecked):
        said = ["right" if right else "not right" for right in found.right]
        answer = f"It is {_amount(found.answer, found.unit)}."
        return [f"Your answer is {', '.join(said)}.", answer, found.note]
    measured = ["Measured, and looked up."] if found.kind == "measured" else []
    printed = found.book.latest if found.edition == "latest" else found.book.first
    book = f"The {found.edition} edition prints {_said(printed)}."
    return [*measured, book, found.note]


def _amount(value: Any, unit: Any) -> str:
    """A number to read, in its unit; of several each in its own."""
    if isinstance(value, list | tuple):
        units = [unit] * len(value) if isinstance(unit, str) else unit
        return "; ".join(_in_short(one, of) for one, of in zip(value, units, strict=True))
    if unit == "s" and value > 0:
        return format_seconds(value)
    whole = 1e5 <= abs(value) < 1e12
    return f"{value:,.0f} {unit}" if whole else f"{value:,.6g} {unit}"


def _in_short(value: float, unit: str) -> str:
    """One of several numbers, with three digits and its unit."""
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_binary(value)
    if unit.startswith("FLOP") or unit == "bytes/s":
        return format_rate(value, unit.replace("bytes/s", "B/s"))
    said = {"params": "parameters", "ratio": "", "value": "", "count": ""}.get(unit, unit)
    return f"{format_count(value)} {said}".strip()


def _said(value: Any) -> str:
    return _number(value) if isinstance(value, float) else str(_cell(value))


def _table(title: str, found: Sequence[Record], names: Sequence[str]) -> TableData:
    rows = [[_cell(getattr(one, name)) for name in names] for one in found]
    return TableData(title=title, header=("name", *names[1:-1], "unit"), rows=rows)


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        known = {name: one for name, one in value.items() if one is not None}
        return ", ".join(f"{name} {_number(one)}" for name, one in known.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_number, value))
    return cell(value)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


VIEW: PageView[Any] = PageView(
    name="book",
    title="Book and quizzes",
    about="Each number of the book, from its inputs by its formulas; or asked as a question.",
    group="Look up",
    state=BookState,
    calls=_calls,
    draw=_draw,
    crossed=("id", "quiz"),
)
