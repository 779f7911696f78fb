"""One op at every stage of the compiler, as a part of a page."""

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import cut, wrapped
from shardwise.commands.program.compile_result import Stages
from shardwise.units import format_seconds

SHOWN = 2
"""Equations, ops and instructions of a stage on a page."""
LONGEST, NAME, CELL = 94, 34, 42
"""Characters of one of them, of a pass, and of what there is after it."""


def stages_page(stages: Stages, more: str = "--json, or --out") -> Page:
    """The op in JAX, StableHLO and HLO, what runs around it, and what each pass changed of it.
    `more` is said to have what is not shown."""
    where = f"{stages.op} ({stages.source.rpartition('/')[2]})" if stages.source else stages.op
    took = ""
    if stages.seconds is not None and stages.share is not None:
        took = f", {format_seconds(stages.seconds)} of the step, {100 * stages.share:.1f} %"
    yield f"{where}{took}"
    named = {"jaxpr": stages.jaxpr, "StableHLO": stages.stablehlo, "optimised HLO": stages.hlo}
    for head, texts in named.items():
        yield f"  {head}"
        for text in texts[:SHOWN] or ("(not told apart in this text)",):
            yield f"    {cut(text, LONGEST)}"
        if len(texts) > SHOWN:
            yield f"    and {len(texts) - SHOWN} more: {more}"
    if stages.schedule:
        yield TextTable(
            ["schedule", "stream", "starts", "takes"],
            [
                [
                    f"{'* ' if turn.own else '  '}{turn.name}",
                    turn.stream,
                    format_seconds(turn.start),
                    format_seconds(turn.seconds),
                ]
                for turn in stages.schedule
            ],
            left=2,
        )
    yield TextTable(
        ["pass", "what it did", "and there is"],
        [
            [cut(c.name, NAME), ", ".join(c.kinds), cut("; ".join(c.after) or "-", CELL)]
            for c in stages.changes
        ],
        left=3,
        ruled=False,
    )


def passes_page(stages: Stages) -> Page:
    """All that each pass took away and made."""
    yield f"what passes changed of {stages.op}"
    for change in stages.changes:
        yield wrapped(f"{change.number} {change.name}: {', '.join(change.kinds)}", 2, 4)
        yield from (wrapped(f"- {text}", 4, 6) for text in change.before)
        yield from (wrapped(f"+ {text}", 4, 6) for text in change.after)
