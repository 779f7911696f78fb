"""`shardwise plan diff`: what changes between two plan files, and what it does to the estimate."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.options import hardware_options
from shardwise.apps.cli.output import document, emit, json_option, table
from shardwise.apps.cli.plan_show import plan_file, priced_file
from shardwise.units import format_bytes, format_gib, format_seconds, sig
from shardwise.workflows.plan_diff import PlanDiff, diff_plans


@click.command()
@click.argument("first", type=plan_file)
@click.argument("second", type=plan_file)
@hardware_options(constants=None, price=False)
@json_option
def diff(first: Path, second: Path, as_json: bool, **options: Any) -> None:
    """What changes between two plan files, and what it does to the estimate."""
    a, b = priced_file(first, options), priced_file(second, options)
    found = diff_plans(a, b)
    misses = zip((first, second), found.misses, strict=True)
    doc = document(
        inputs={"first": str(first), "second": str(second)},
        result={
            "changed": found.changed,
            "effect": found.effect,
            "bound_by": found.bound_by,
            "memory_by_kind": found.memory_by_kind,
        },
        warnings=[
            *dict.fromkeys([*a.warnings, *b.warnings]),
            *(f"{path}: {miss}" for path, miss in misses if miss),
        ],
    )
    emit(doc, as_json, lambda: _render(found, str(first), str(second)))


def _render(found: PlanDiff, first: str, second: str) -> None:
    rows = [[name, str(old), str(new)] for name, (old, new) in found.changed.items()]
    table(["choice", first, second], rows or [["(no choice differs)", "", ""]])
    click.echo()
    rows = [[name, *_pair(name, x, y)] for name, (x, y) in found.effect.items()]
    rows += [[f"{phase} bound by", *pair, ""] for phase, pair in found.bound_by.items()]
    table(["predicted", first, second, "ratio"], rows)
    moved = {kind: pair for kind, pair in found.memory_by_kind.items() if pair[0] != pair[1]}
    if moved:
        click.echo()
        rows = [
            [kind, format_bytes(x), format_bytes(y), _ratio(x, y)] for kind, (x, y) in moved.items()
        ]
        table(["HBM per chip at the peak", first, second, "ratio"], rows)


def _pair(name: str, x: float, y: float) -> list[str]:
    return [_shown(name, x), _shown(name, y), _ratio(x, y)]


def _ratio(x: float, y: float) -> str:
    return f"{y / x:.3f}" if x else "new"


def _shown(name: str, value: float) -> str:
    if "seconds" in name:
        return format_seconds(value)
    return format_gib(value) if "bytes" in name else sig(value, 4)
