"""A view: a name, controls, the calls that a state makes, and how their answers are drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import Control, State, written
from shardwise.apps.page.figures import FigureData, TableData
from shardwise.commands.base.answer import Answer
from shardwise.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a view shows of its answers: figures, tables, sentences; the formula behind them and
    where it is from."""

    figures: Sequence[FigureData] = ()
    tables: Sequence[TableData] = ()
    lines: Sequence[str] = ()
    formula: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """One view of the page. `calls` are made at once; `slow` are those of a search or a
    simulation, which the page asks for once a control has come to rest, and `coarse` what stands in
    their place until then. `draw` takes the answers of `calls` and of one of the other two, in that
    order, or of `calls` alone."""

    name: str
    title: str
    about: str
    controls: tuple[Control, ...]
    calls: Callable[[State], Sequence[VerbCall]]
    draw: Callable[[State, Sequence[Answer]], Drawn]
    slow: Callable[[State], Sequence[VerbCall]] | None = None
    coarse: Callable[[State], Sequence[VerbCall]] | None = None
    known: dict[str, Control] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", {one.name: one for one in self.controls})

    def made(self, state: State, fine: bool = False) -> list[VerbCall]:
        """The calls of a state: with the slow ones where `fine`, else with the coarse ones."""
        more = self.slow if fine else self.coarse
        return [*self.calls(state), *(more(state) if more else ())]

    def document(self, state: State, fine: bool = False) -> dict[str, Any]:
        """The answer for a state. Raises BadRequest where a verb refuses it."""
        calls = self.made(state, fine)
        answers = [call.answer() for call in calls]
        drawn = self.draw(state, answers)
        return {
            "view": self.name,
            "state": {name: written(value) for name, value in state.items()},
            "refines": self.slow is not None and not fine,
            "figures": [figure.document() for figure in drawn.figures],
            "tables": [table.document() for table in drawn.tables],
            "lines": list(drawn.lines),
            "formula": drawn.formula,
            "source": drawn.source,
            "warnings": [str(one) for answer in answers for one in answer.warnings],
            "commands": [call.shell() for call in self.made(state, fine=True)],
            "python": _snippet(self.made(state, fine=True)),
        }

    def heading(self) -> dict[str, Any]:
        """What the page needs before it asks."""
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "controls": [control.document() for control in self.controls],
        }


def _snippet(calls: Sequence[VerbCall]) -> str:
    made = [f"answer_{i} = {call.python()}" for i, call in enumerate(calls, 1)]
    return "\n".join(["import shardwise as sw", "", *made, f"print(answer_{len(made)})"])


def refused(control: str, value: Any, rule: str, remedy: str) -> BadRequest:
    """A value that a control takes and its view does not, beside the others."""
    return BadRequest(f"control '{control}' is {written(value)}; {rule}; {remedy}")
