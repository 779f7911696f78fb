"""How a plan prints beside the best one (`plan train --against`)."""

from typing import Any

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import memory_of, wrapped
from shardwise.commands.plan_train.against import Against, AgainstPlan, gain_text
from shardwise.commands.pricing.predict import compared_text
from shardwise.commands.pricing.train_page import measured_text
from shardwise.evidence.compare_plans import Difference
from shardwise.plans.train import mesh_text
from shardwise.results.train import PricedPlan
from shardwise.units import format_count, format_gib, format_seconds


def against_page(found: Against, theirs: AgainstPlan, ours: PricedPlan) -> Page:
    """The two plans' figures, and the choices that cost the other one most."""
    need, usable = theirs.peak_bytes_per_chip, ours.usable_bytes_per_chip
    unfit = f", but does not fit: {memory_of(need, usable)} per chip"
    told = compared_text(found.times_slower, "the best plan") + (unfit if need > usable else "")
    yield ""
    yield wrapped(f"against {found.name}: {told}{_both_times(theirs)}", 0, 2)
    if theirs.measured:
        yield wrapped(f"theirs measured: {measured_text(theirs.measured)}", 2, 4)
    rows = figures(ours, theirs)
    yield TextTable(["predicted", "ours", "theirs"], rows, ruled=False)
    largest = sorted(found.differences, key=_effect, reverse=True)
    rows = [[r.field, shown(r.ours), shown(r.theirs), gain_text(r)] for r in largest]
    if rows:
        yield TextTable(
            ["choice", "ours", "theirs", "theirs with ours"],
            rows[:_CHOICES],
            left=3,
            spare=("ours",),
            ruled=False,
        )
    left = len(rows) - _CHOICES
    yield f"  ({left} more choices differ: --detail)" if left > 0 else "  (no other choice differs)"


def _both_times(theirs: AgainstPlan) -> str:
    """What was predicted of the other plan and what its run took, where that is published."""
    measured = theirs.measured
    if not measured or measured.step_seconds is None:
        return ""
    predicted = theirs.step_seconds.expected
    took = format_seconds(measured.step_seconds)
    return f" (predicted {format_seconds(predicted)}, measured {took})"


_CHOICES = 4
"""Choices that a page shows of those that differ from another plan's."""


def _effect(row: Difference) -> float:
    """How much one choice changes the other plan's step, either way."""
    return -1.0 if row.effect is None else round(abs(row.effect - 1), 3)


def against_detail(found: Against) -> Page:
    """How the other plan was read, every choice that differs, and the reasons."""
    yield ""
    yield f"against {found.name}"
    if found.measured:
        yield wrapped(f"measured: {found.measured.note}", 2, 4)
    for note in found.notes:
        yield wrapped(note, 2, 4)
    rows = [[r.field, shown(r.ours), shown(r.theirs), gain_text(r)] for r in found.differences]
    if rows:
        yield TextTable(["choice", "ours", "theirs", "theirs with ours"], rows, left=3)
    for reason in found.reasons:
        yield wrapped(f"- {reason}", 2, 4)


def figures(ours: PricedPlan, theirs: AgainstPlan) -> list[list[str]]:
    """Headline figures of both."""
    both = ours, theirs
    return [
        ["seconds per step", *(format_seconds(r.step_seconds.expected) for r in both)],
        ["tokens/s", *(format_count(r.tokens_per_second) for r in both)],
        ["MFU", *(f"{r.mfu:.1%} of {r.mfu_dtype}" for r in both)],
        ["HBM per chip", *(format_gib(r.peak_bytes_per_chip) for r in both)],
        ["bound by", *(r.bound_by for r in both)],
    ]


def shown(value: Any) -> str:
    """A choice in a table."""
    if isinstance(value, dict):
        return mesh_text(value)
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value)
