"""A view: a name, controls, the calls that a state makes, and how their answers are drawn."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import Control, S, ShownControl, controls_of, words_of, written
from shardwise.apps.page.figures import FigureData, KeyFigure, TableData
from shardwise.apps.page.given import as_named
from shardwise.boundary.records import Record
from shardwise.commands.base.answer import Answer
from shardwise.errors import BadRequest, ShardwiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLink:
    """Something to look at next: another view, with the words of its state that are not usual; or
    the `lecture` of a chapter."""

    text: str
    view: str
    state: Mapping[str, str]
    lecture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a view shows of its answers: the answer in one sentence and in `key` figures, an
    animation, figures, tables, more sentences, what to look at next; the formula behind them and
    where it is from. `right` is whether a question was answered, None where none was."""

    says: str = ""
    key: Sequence[KeyFigure] = ()
    right: bool | None = None
    player: Mapping[str, Any] | None = None
    links: Sequence[ViewLink] = ()
    figures: Sequence[FigureData] = ()
    tables: Sequence[TableData] = ()
    lines: Sequence[str] = ()
    formula: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownView(Record):
    """What is shown of a view for a state: what was drawn, which slower calls refine it (`quick`,
    `yes` for those of the answer, or none), and the calls as commands and as Python."""

    view: str
    state: Mapping[str, str]
    refines: str
    says: str
    key: Sequence[KeyFigure]
    right: bool | None
    player: Mapping[str, Any] | None
    links: Sequence[ViewLink]
    figures: Sequence[FigureData]
    tables: Sequence[TableData]
    lines: Sequence[str]
    formula: str
    source: str
    warnings: Sequence[str]
    commands: Sequence[str]
    python: str
    growths: Sequence[str]
    traced: bool
    planned: bool


GROWTHS = ("1", "2", "4")
"""Times the tokens of a run, or the requests of a load, that a decision sheet has rows for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRows(Record):
    """The rows of a decision sheet for one growth, the commands they are from, and remarks."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    commands: Sequence[str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewHeading(Record):
    """What the page needs of a view before it asks."""

    name: str
    title: str
    about: str
    group: str
    controls: Sequence[ShownControl]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView(Generic[S]):
    """One view of the page, whose controls are the fields of `state`; `group` is its heading in
    the menu. `calls` are made at once;
    `slow` are those of a search or a simulation, which the page asks for once a control has come to
    rest, and `coarse` what stands in their place until then; `quick` ones take about a second, and
    are asked for before the slow ones. `draw` takes the answers of `calls` and of one of the other
    three, in that order, or of `calls` alone. An exported site has each position of the controls
    that are `crossed` with each of the others (`grid.py`). `sheet` has the rows of a decision sheet
    for one of the `GROWTHS`, `trace` the file of a timeline that Perfetto opens, `plan` the file of
    the plan that is the answer."""

    name: str
    title: str
    about: str
    group: str
    state: type[S]
    calls: Callable[[S], Sequence[VerbCall]]
    draw: Callable[[S, Sequence[Answer]], Drawn]
    slow: Callable[[S], Sequence[VerbCall]] | None = None
    coarse: Callable[[S], Sequence[VerbCall]] | None = None
    quick: Callable[[S], Sequence[VerbCall]] | None = None
    crossed: tuple[str, ...] = ()
    sheet: Callable[[S, float], DecisionRows] | None = None
    trace: Callable[[S], Path] | None = None
    plan: Callable[[S], str] | None = None
    controls: tuple[Control, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "controls", controls_of(self.state))

    def made(self, state: S, fine: bool = False, quick: bool = False) -> list[VerbCall]:
        """The calls of a state: with the slow ones where `fine`, else the quick or coarse ones."""
        more = self.slow if fine else self.quick if quick else self.coarse
        return [*self.calls(state), *(more(state) if more else ())]

    def document(self, state: S, fine: bool = False, quick: bool = False) -> ShownView:
        """The answer for a state. Raises BadRequest where a verb refuses it."""
        answers = [call.answer() for call in self.made(state, fine, quick)]
        then = "yes" if quick or self.quick is None or not self.quick(state) else "quick"
        calls = self.made(state, fine=True)
        return ShownView.part_of(
            self.draw(state, answers),
            view=self.name,
            state=words_of(state),
            refines=then if self.slow is not None and not fine else "",
            warnings=[as_named(str(one)) for answer in answers for one in answer.warnings],
            commands=[call.shell() for call in calls],
            python=_snippet(calls),
            growths=GROWTHS if self.sheet else (),
            traced=self.trace is not None,
            planned=self.plan is not None,
        )

    def refusal(self, error: ShardwiseError) -> str:
        """An error in words of the page: options that are controls here by their labels."""
        labels = {one.name.replace("_", "-"): f"'{one.label}'" for one in self.controls}
        return re.sub(r"--([a-z-]+)", lambda m: labels.get(m[1], m[0]), as_named(str(error)))

    def settled(self, state: S, coarse: bool = False) -> ShownView:
        """The answer that nothing refines: that of the slow calls, or where `coarse` of the quick
        ones, if there are some. Raises BadRequest where a verb refuses it."""
        if not (coarse and self.quick is not None and self.quick(state)):
            return self.document(state, fine=True)
        calls = self.made(state, quick=True)
        commands = [call.shell() for call in calls]
        found = self.document(state, quick=True)
        return replace(found, refines="", commands=commands, python=_snippet(calls))

    def heading(self) -> ViewHeading:
        """What the page needs before it asks."""
        return ViewHeading.part_of(self, controls=[control.shown() for control in self.controls])


def _snippet(calls: Sequence[VerbCall]) -> str:
    made = [f"answer_{i} = {call.python()}" for i, call in enumerate(calls, 1)]
    return "\n".join(["import shardwise as sw", "", *made, f"print(answer_{len(made)})"])


def refused(control: str, value: object, rule: str, remedy: str) -> BadRequest:
    """A value that a control takes and its view does not, beside the others."""
    return BadRequest(f"control '{control}' is {written(value)}; {rule}; {remedy}")
