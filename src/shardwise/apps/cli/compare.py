"""`shardwise compare`: a plan, its compiled program and a capture of it, part by part."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.compile import compile_options, compiled_plan, is_function
from shardwise.apps.cli.output import document, emit, table
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.units import format_bytes, format_count, format_gib, format_seconds

PARTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "step": ("step time", format_seconds),
    "seconds": ("seconds by op class, one after the other", format_seconds),
    "flops": ("FLOPs by op class", format_count),
    "hbm_bytes": ("HBM bytes by op class", format_bytes),
    "collective_bytes": ("bytes V by collective", format_bytes),
    "collective_runs": ("runs by collective", lambda n: f"{n:g}"),
    "flops_by_key": ("FLOPs by phase, component, class", format_count),
    "hbm_bytes_by_key": ("HBM bytes by phase, component, class", format_bytes),
    "collective_bytes_by_key": ("bytes V by phase, component, collective", format_bytes),
    "memory": ("memory by kind", format_gib),
}
"""Parts of a comparison, their titles and how their figures are written."""
LEAST = 0.01
"""Share of a part's largest row from which a row by key is shown; --json has them all."""


@click.command()
@click.argument("what", metavar="PLAN")
@compile_options
@click.option("--phase", type=click.Choice(["train", "decode", "prefill"]), help="Default: all.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=True, path_type=Path),
    metavar="FILE",
    help="A capture of the program (.xplane.pb or trace.json.gz): measured beside both.",
)
def compare(
    what: str, as_json: bool, phase: str | None, trace: Path | None, **options: Any
) -> None:
    """Hold a plan beside its program, as compiled for a slice that is not here.

    FLOPs, bytes and seconds by op class, collectives by kind and axes, all of them by phase and
    component of the model, memory by kind, all of one device and one step; and in sentences what
    differs, and where the program does it.
    """
    from shardwise.workflows.compare import compare_program, compared_result, read_trace
    from shardwise.workflows.compile import shortfall

    if is_function(what):
        raise BadRequest(f"'{what}' is a function, of which nothing is planned; name a plan's file")
    options["phases"] = (phase,) if phase else ()
    captured = None if trace is None else read_trace(trace)
    done = compiled_plan(what, options)
    if trace is not None and len(done.programs) > 1:
        raise BadRequest("--trace is a capture of one program; say which with --phase")
    results = [
        compared_result(compare_program(done.priced, program, captured))
        for program in done.programs
    ]
    doc = document(
        inputs={"what": what, **{k: v for k, v in options.items() if v}},
        result={"programs": results},
        warnings=done.priced.warnings,
        provenance={"versions": dict(done.programs[0].compiled.versions)},
    )
    emit(doc, as_json, lambda: _render(results))
    misses = [shortfall(p, done.priced.plan) for p in done.programs if not p.compiled.fits]
    if misses:
        raise NoFeasiblePlan("\n".join(misses))


def _render(results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        _render_program(result)


def _render_program(result: Mapping[str, Any]) -> None:
    fits = "fits" if result["fits"] else "does not fit"
    click.echo(f"{result['phase']} on {result['slice']}: {fits}")
    for part, (title, text) in PARTS.items():
        if rows := _worth(part, result.get(part, [])):
            click.echo()
            _table(title, rows, text)
    click.echo()
    if not result["differences"]:
        click.echo("Nothing differs by more than 2 %.")
    for sentence in result["differences"]:
        click.echo(f"  - {sentence}")
    click.echo()


def _worth(part: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that are shown; of those by key, the large ones."""
    sizes = [max(row["predicted"] or 0.0, row["compiled"] or 0.0) for row in rows]
    least = LEAST * max(sizes, default=0.0) if part.endswith("_by_key") else 0.0
    return [row for row, size in zip(rows, sizes, strict=True) if size >= least]


def _table(title: str, rows: list[dict[str, Any]], text: Callable[[float], str]) -> None:
    sides = ["predicted", "compiled", *(["measured"] if any("measured" in r for r in rows) else [])]
    cells = [
        [row["what"], *(_figure(row.get(side), text) for side in sides), _part(row)] for row in rows
    ]
    table([title, *sides, "compiled/predicted"], cells)


def _figure(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _part(row: Mapping[str, Any]) -> str:
    one, other = row["predicted"], row["compiled"]
    return f"{100 * (other / one - 1):+.1f} %" if one and other else ""
