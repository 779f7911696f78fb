"""`shardwise explain`: where the time of a compiled step goes, and what in it is a mistake."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.compile import compile_options, compiled_programs
from shardwise.apps.cli.output import document, emit, table
from shardwise.errors import NoFeasiblePlan
from shardwise.units import format_bytes, format_seconds

SHOWN = 12


@click.command()
@click.argument("what", metavar="PLAN|MODULE:FUNCTION")
@compile_options
@click.option("--phase", type=click.Choice(["train", "decode", "prefill"]), help="Of a plan.")
def explain(what: str, as_json: bool, phase: str | None, **options: Any) -> None:
    """Explain a plan's program, or a function, as compiled for a slice that is not here.

    Seconds by source line and by named scope, what bounds each, what is exposed, how the arguments
    lie on the mesh, and findings, each with its cost and a remedy.
    """
    from shardwise.workflows.compile import shortfall
    from shardwise.workflows.explain import explain_result, explained
    from shardwise.workflows.inputs import Hardware

    options["phases"] = (phase,) if phase else ()
    programs, plan, warnings = compiled_programs(what, options)
    program = programs[0]
    hardware = Hardware(files=options["hw_files"])
    found = explained(program, hardware.slice(program.compiled.slice).slice)
    result = {"phase": program.phase, "slice": program.compiled.slice, **explain_result(found)}
    if not program.compiled.fits:
        warnings = [*warnings, "the program does not fit; times are of what would run"]
    doc = document(
        inputs={"what": what, **{k: v for k, v in options.items() if v}},
        result=result,
        warnings=warnings,
        provenance={"versions": dict(program.compiled.versions)},
    )
    emit(doc, as_json, lambda: _render(result))
    if not program.compiled.fits:
        raise NoFeasiblePlan(shortfall(program, plan))


def _render(r: dict[str, Any]) -> None:
    step = r["step_seconds"]
    click.echo(
        f"{r['phase']} on {r['slice']}, compiled: {format_seconds(step['expected'])} per step "
        f"expected (lower {format_seconds(step['lower'])}, upper {format_seconds(step['upper'])}), "
        f"matrix units at their peak for {100 * r['hfu']:.1f} % of it, "
        f"{format_seconds(r['exposed_communication'])} of exposed communication"
    )
    for title, key in (("by source line", "lines"), ("by scope", "scopes")):
        click.echo()
        table(
            [title, "time", "of step", "exposed", "bound by"],
            [
                [
                    _short(line["where"]),
                    format_seconds(line["seconds"]),
                    f"{100 * line['share']:.1f} %",
                    format_seconds(line["exposed"]) if line["exposed"] else "",
                    line["bound_by"],
                ]
                for line in r[key][:SHOWN]
                if line["seconds"]
            ],
        )
    click.echo()
    table(
        ["argument", "layout", "per device"],
        [
            [_short(a["name"]), f"{a['layout']} {a['dtype']}", format_bytes(a["bytes"])]
            for a in r["arguments"][:SHOWN]
        ],
        left=2,
    )
    click.echo()
    for f in r["findings"]:
        click.echo(f"{f['rule']}, {format_seconds(f['seconds'])} per step: {f['what']}")
        click.echo(f"  at {_short(f['where'])}")
        click.echo(f"  {f['remedy']}")
    if not r["findings"]:
        click.echo("No findings: no mistake that is looked for costs 1 % of the step.")
        if wait := r["longest_wait"]:
            click.echo(
                f"It waits {format_seconds(wait['exposed'])} at {_short(wait['where'])}, bound by "
                f"{wait['bound_by']}: what these layouts cost; a larger batch or another mesh may "
                "wait less."
            )


def _short(where: str) -> str:
    where = where.removeprefix(f"{Path.cwd()}/")
    return where if len(where) <= 60 else "..." + where[-57:]
