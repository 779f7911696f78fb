"""Cures of findings, compiled: a function called with arguments donated, or laid out anew."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record
from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import wrapped
from shardwise.commands.program.compiling import PlanProgram
from shardwise.commands.program.explaining import seen, short_place
from shardwise.errors import ShardwiseError
from shardwise.profiler.explain import Explanation
from shardwise.profiler.explain.cures import Cure
from shardwise.units import format_bytes, format_seconds

MOST = 3
"""Cures that are tried, those of the dearest findings: each is a compile."""
WITHIN = "the remedy is a change inside your function"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCure(Record):
    """A cure that was compiled, or why it was not."""

    rule: str
    """The finding that it is of."""
    where: str
    """Where that is."""
    change: str
    """Change of the call; empty if no change helps."""
    before: float
    """Seconds of a step without it."""
    after: float
    """Seconds of a step with it; as before where it was not compiled."""
    saves: float
    """Seconds per step that it saves, as compiled; below 0 where it costs."""
    frees: float
    """Bytes of a device's memory that it frees, as compiled; 0 where the peak is not known."""
    failed: str
    """Why it was not compiled; empty where it was."""


def tried(
    program: PlanProgram,
    e: Explanation,
    compiled: Callable[[Cure], tuple[PlanProgram, float]],
) -> list[TriedCure]:
    """Each finding with its cure; `compiled` gives the program with one, and its seconds."""
    found, before = [], e.timeline.expected
    by_finding = {id(cure.finding): cure for cure in e.cures[:MOST]}
    for finding in e.findings:
        cure = by_finding.get(id(finding))
        after, frees, failed = before, 0.0, WITHIN
        if cure is not None:
            try:
                (made, after), failed = compiled(cure), ""
                frees = float(program.compiled.needed_bytes - made.compiled.needed_bytes)
            except ShardwiseError as error:
                failed = str(error)
        elif any(finding.rule == c.finding.rule for c in e.cures):
            failed = f"only the {MOST} most expensive are tried, and each remedy once"
        row = TriedCure(
            rule=finding.rule,
            where=seen(finding.where),
            change=cure.text if cure else "",
            before=before,
            after=after,
            saves=before - after,
            frees=frees,
            failed=failed,
        )
        found.append(row)
    return found


def tried_page(found: Sequence[TriedCure]) -> Page:
    """What each cure saves, as compiled."""
    done = [t for t in found if not t.failed]
    if done:
        yield ""
        yield TextTable(
            ["tried", "at", "step", "saves", "frees"],
            [
                [
                    t.rule,
                    short_place(t.where),
                    format_seconds(t.after),
                    f"{format_seconds(abs(t.saves))}{' more' if t.saves < 0 else ''}",
                    format_bytes(t.frees) if t.frees > 0 else "-",
                ]
                for t in done
            ],
            left=2,
        )
        yield from (wrapped(f"{t.rule}: {t.change}", 2, 4) for t in done)
    for t in found:
        if t.failed:
            yield wrapped(f"not tried: {t.rule} at {short_place(t.where)}: {t.failed}", 0, 2)
