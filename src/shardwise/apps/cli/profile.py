"""`shardwise profile`: run a plan or a function here, or read a capture, and say what took long."""

import sys
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.compile import is_function, watcher
from shardwise.apps.cli.files import check_outputs, folder_option
from shardwise.apps.cli.numbers import DEVICES, SECONDS, Whole
from shardwise.apps.cli.options import given
from shardwise.apps.cli.output import document, emit, json_option, plain, table
from shardwise.errors import BadRequest
from shardwise.units import format_rate, format_seconds

SHOWN = 12
PATH = click.Path(dir_okay=True, path_type=Path)


@click.command()
@click.argument("what", metavar="[PLAN|MODULE:FUNCTION]", required=False)
@click.option(
    "--steps",
    type=Whole(least=1, most=100_000),
    default=10,
    show_default=True,
    help="Steps to time.",
)
@click.option("--cpu-devices", type=DEVICES, metavar="N", help="Run on N virtual CPU devices.")
@click.option("--phase", type=click.Choice(["train", "decode", "prefill"]), help="Of a plan.")
@click.option("--args", metavar="MODULE:NAME", help="Makes a function's arguments.")
@click.option("--mesh", metavar="X=4,Y=2", help="Mesh of a function; default x, all devices.")
@click.option("--on", metavar="SLICE", help="Prices a function's compiled ops on it.")
@click.option("--trace", type=PATH, metavar="FILE", help="Read a capture that was made elsewhere.")
@click.option("--hlo", type=PATH, metavar="FILE", help="Compiled text of the capture's program.")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change a plan.")
@click.option("--hw", "hw_files", multiple=True, metavar="FILE", help="Adds a chip.")
@click.option("--timeout", type=SECONDS, default=900.0, metavar="SECONDS", help="[900]")
@folder_option("--out", metavar="DIR", help="Keep capture, tables and compiled text.")
@json_option
def profile(what: str | None, as_json: bool, **options: Any) -> None:
    """Time steps of a plan or of a function on the devices here, op by op.

    Measured seconds stand beside those of the compiled program and, for a plan, of the planner.
    With --trace nothing is run: an .xplane.pb or trace.json.gz of a CPU, GPU or TPU is read.
    """
    check_outputs(what)
    from shardwise.workflows.profile import profile_result, write_profile

    if options["trace"] is not None:
        _check_trace_alone(what, options)
        _show_trace(options, as_json)
        return
    if what is None:
        raise BadRequest("name a plan or MODULE:FUNCTION to run, or a capture with --trace FILE")
    if options["hlo"] is not None:
        raise BadRequest("--hlo is the program of a capture; give it with --trace")
    try:
        found = _run(what, options)
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[2K", nl=False, err=True)
    result = profile_result(found)
    doc = document(
        inputs={"what": what, **given(options)}, result=result, warnings=list(found.notes)
    )
    if options["out"] is not None:
        doc["result"]["files"] = write_profile(options["out"], found, plain(doc))
    emit(doc, as_json, lambda: _render(result, options["out"]))


def _run(what: str, options: dict[str, Any]) -> Any:
    from shardwise.workflows.inputs import Hardware
    from shardwise.workflows.profile import profile_function, profile_plan

    hardware = Hardware(files=options["hw_files"])
    run: dict[str, Any] = {
        "steps": options["steps"],
        "cpu_devices": options["cpu_devices"],
        "seconds": options["timeout"],
        "keep": options["out"],
        "watch": watcher(),
    }
    if not is_function(what):
        return profile_plan(_plan(what, options), hardware, phase=options["phase"], **run)
    if not options["args"]:
        raise BadRequest(f"function '{what}' needs --args; see `shardwise profile --help`")
    if options["sets"] or options["phase"]:
        raise BadRequest("--set and --phase are of plans; a function takes neither")
    piece = hardware.slice(options["on"]).slice if options["on"] else None
    return profile_function(what, options["args"], _mesh(options, piece), piece, **run)


def _plan(what: str, options: dict[str, Any]) -> Any:
    from shardwise.apps.cli.compile import _pair
    from shardwise.plans import load_plan
    from shardwise.plans.named import plan_path

    for name in ("args", "mesh", "on"):
        if options[name]:
            raise BadRequest(f"--{name} is of functions; the plan '{what}' has its own")
    return load_plan(plan_path(what), dict(_pair(text, "--set") for text in options["sets"]))


def _mesh(options: dict[str, Any], piece: Any) -> dict[str, int]:
    from shardwise.sharding import Mesh

    if options["mesh"]:
        return dict(Mesh.parse(options["mesh"]))
    return {"x": options["cpu_devices"] or (piece.devices if piece else 1)}


def _check_trace_alone(what: str | None, options: dict[str, Any]) -> None:
    others = ("cpu_devices", "phase", "args", "mesh", "on", "sets", "hw_files", "out")
    clash = [f"--{name.replace('_', '-')}" for name in others if options[name]]
    clash = [what, *clash] if what is not None else clash
    if clash:
        raise BadRequest(f"--trace reads a capture and runs nothing; leave out {', '.join(clash)}")


def _show_trace(options: dict[str, Any], as_json: bool) -> None:
    from shardwise.workflows.profile import profile_result, profile_trace, trace_result

    trace, found = profile_trace(options["trace"], options["hlo"])
    result = trace_result(trace) if found is None else profile_result(found)
    doc = document(inputs=given({k: options[k] for k in ("trace", "hlo")}), result=result)
    emit(doc, as_json, lambda: (_render_trace if found is None else _render)(result))


def _render(r: dict[str, Any], out: Path | None = None) -> None:
    step = r["step_seconds"]
    times = [f"{format_seconds(step['measured'])} per step measured"]
    times += [f"{format_seconds(step[k]['expected'])} {k}" for k in _sides(step)]
    click.echo(f"{r['phase']} on {r['devices']} of '{r['kind']}': {', '.join(times)}")
    for title, key in (("op class", "by_class"), ("source line", "by_line"), ("scope", "by_scope")):
        click.echo()
        sides = ("compiled", "predicted") if key == "by_class" else ("compiled",)
        shown = [s for s in sides if any(row.get(s) is not None for row in r[key])]
        total = sum(row["measured"] for row in r[key]) or 1.0
        rows = [
            [
                _short(row["where"]),
                format_seconds(row["measured"]),
                f"{100 * row['measured'] / total:.1f} %",
                *(format_seconds(row[s]) for s in shown),
                _rate(row),
            ]
            for row in r[key][:SHOWN]
            if row["measured"] or any(row[s] for s in shown)
        ]
        table([title, "measured", "of ops", *shown, "rate"], rows)
    if r["unmatched"]:
        names = ", ".join(row["name"] for row in r["unmatched"][:5])
        click.echo(f"\n{format_seconds(r['unmatched_seconds'])} matched no op: {names}")
    if out is not None:
        click.echo(f"\nCapture and tables in {out}")


def _rate(row: dict[str, Any]) -> str:
    counted = row["flops"] and row["measured"]
    return format_rate(row["flops"] / row["measured"], "FLOP/s") if counted else ""


def _sides(step: dict[str, Any]) -> list[str]:
    return [side for side in ("compiled", "predicted") if step[side]]


def _render_trace(r: dict[str, Any]) -> None:
    seconds = format_seconds(r["step_seconds"]["traced"])
    click.echo(
        f"{r['module']}: {r['runs']:g} runs on {r['devices']} devices, {seconds} each (median)"
    )
    for title, key in (("kind", "by_class"), ("source line", "by_line"), ("op", "by_op")):
        click.echo()
        rows = [[_short(row["where"]), format_seconds(row["measured"])] for row in r[key][:SHOWN]]
        table([title, "per run"], rows)


def _short(where: str) -> str:
    return where if len(where) <= 60 else "..." + where[-57:]
