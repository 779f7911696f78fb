"""`plan train --against PLAN`: a published plan beside the one that was found."""

from typing import Any

import click

from shardwise.apps.cli.output import table
from shardwise.evidence.against import Against, gain_text
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_gib, format_seconds
from shardwise.workflows.predict import slower_text

against_option = click.option(
    "--against",
    metavar="PLAN",
    help="A plan file or audit:NAME (`shardwise book list`) to price beside the best plan.",
)


def render_against(found: Against, result: dict[str, Any]) -> None:
    """The two plans' figures, the choices that differ, and why."""
    theirs, slower = result["against"], found.times_slower
    told = slower_text(slower) if slower >= 1 else f"{1 - slower:.1%} faster"
    click.echo(f"\nAgainst {found.name}: {told} than the best plan")
    for note in found.notes:
        click.echo(f"  {note}")
    click.echo()
    table(["predicted", "ours", "theirs"], figures(result, theirs))
    click.echo()
    rows = [[r.field, shown(r.ours), shown(r.theirs), gain_text(r)] for r in found.differences]
    table(
        ["choice", "ours", "theirs", "theirs with ours"],
        rows or [["(no choice differs)", "", "", ""]],
        left=3,
    )
    for reason in found.reasons:
        click.echo(f"  - {reason}")


def figures(ours: dict[str, Any], theirs: dict[str, Any]) -> list[list[str]]:
    """Headline figures of both."""
    both = ours, theirs
    return [
        ["seconds per step", *(format_seconds(r["step_seconds"]["expected"]) for r in both)],
        ["tokens/s", *(format_count(r["tokens_per_second"]) for r in both)],
        ["MFU", *(f"{r['mfu']:.1%}" for r in both)],
        ["HBM per chip", *(format_gib(r["peak_bytes_per_chip"]) for r in both)],
        ["bound by", *(r["bound_by"] for r in both)],
    ]


def shown(value: Any) -> str:
    """A choice in a table."""
    if isinstance(value, dict):
        return mesh_text(value)
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value)
