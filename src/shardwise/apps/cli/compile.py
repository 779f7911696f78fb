"""`shardwise compile`: a plan, or any JAX function, by the real compiler for a slice elsewhere."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, folder_option
from shardwise.apps.cli.numbers import SECONDS
from shardwise.apps.cli.output import document, emit, json_option, plain, table
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.plans.train import mesh_text
from shardwise.units import (
    format_bytes,
    format_count,
    format_gib,
    format_seconds,
    many,
    parse_bytes,
)
from shardwise.workflows.inputs import Hardware

PHASES = click.Choice(["train", "decode", "prefill"])


def compile_options(command: Any) -> Any:
    """Options of every command that compiles."""
    for option in reversed(
        (
            click.option("--on", metavar="SLICE", help="Slice; default that of the plan."),
            click.option("--args", metavar="MODULE:NAME", help="Makes a function's arguments."),
            click.option("--mesh", metavar="X=4,Y=2", help="Mesh of a function; default x, y, z."),
            click.option("--option", "xla", multiple=True, metavar="NAME=VALUE", help="For XLA."),
            click.option("--timeout", type=SECONDS, default=900.0, metavar="SECONDS", help="[900]"),
            click.option("--memory", default="12GiB", help="Of the compiling process.  [12GiB]"),
            click.option("--no-cache", is_flag=True, help="Compile anew and keep nothing."),
            click.option("--cache-size", default="2GiB", help="Most that is kept.  [2GiB]"),
            click.option(
                "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change a plan."
            ),
            click.option("--hw", "hw_files", multiple=True, metavar="FILE", help="Adds a chip."),
            json_option,
        )
    ):
        command = option(command)
    return command


@click.command(name="compile")
@click.argument("what", metavar="PLAN|MODULE:FUNCTION")
@compile_options
@click.option("--phase", "phases", multiple=True, type=PHASES, help="Of a serving plan; all.")
@folder_option("--out", help="Report folder.")
def compile_(what: str, as_json: bool, out: Path | None, **options: Any) -> None:
    """Compile a plan's programs, or a function, for a slice that is not here.

    No accelerator is needed. What was predicted stands beside what the compiler made. A program
    that does not fit ends with code 3 and names its largest buffers.
    """
    check_outputs(what)
    from shardwise.workflows.compile import program_result
    from shardwise.workflows.compile_report import write_report

    programs, plan, warnings = compiled_programs(what, options)
    results = [program_result(program, plan) for program in programs]
    warnings = [*warnings, *(uncounted(r) for r in results if r["unknown_ops"])]
    doc = document(
        inputs={"what": what, **{k: v for k, v in options.items() if v}},
        result={"programs": results},
        warnings=warnings,
        provenance={"versions": results[0]["versions"]},
    )
    if out is not None:
        doc["result"]["files"] = write_report(out, programs, plan, plain(doc))
    emit(doc, as_json, lambda: _render(results, out))
    misses = [r["shortfall"] for r in results if not r["fits"]]
    if misses:
        raise NoFeasiblePlan("\n".join(misses))


def compiled_programs(what: str, options: dict[str, Any]) -> tuple[Sequence[Any], Any, list[str]]:
    """The programs of a plan or of a function, the plan if it is one, and warnings."""
    from shardwise.workflows.compile import compile_function

    if not is_function(what):
        done = compiled_plan(what, options)
        return done.programs, done.priced.plan, done.priced.warnings
    for name in ("args", "on"):
        if not options[name]:
            raise BadRequest(f"function '{what}' needs --{name}; see `shardwise compile --help`")
    if options["sets"] or options.get("phases"):
        raise BadRequest("--set and --phase are of plans; a function takes neither")
    spelling = Hardware(files=options["hw_files"]).slice(options["on"])
    with _watched(options) as common:
        mesh = _mesh(options["mesh"])
        program = compile_function(what, options["args"], spelling.slice, mesh, **common)
    return (program,), None, list(spelling.notes)


def compiled_plan(what: str, options: dict[str, Any]) -> Any:
    """A plan's programs with what it was priced as."""
    from shardwise.workflows.compile import compile_plan

    hardware, plan = Hardware(files=options["hw_files"]), _plan(what, options)
    with _watched(options) as common:
        on, phases = options["on"], options.get("phases", ())
        return compile_plan(plan, hardware, on=on, phases=phases, **common)


@contextmanager
def _watched(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What every compile takes; the line that watches it is gone afterwards."""
    xla = dict(_pair(text, "--option") for text in options["xla"])
    try:
        yield {"options": xla, "limits": _limits(options), "watch": watcher()}
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[2K", nl=False, err=True)


def is_function(what: str) -> bool:
    """Whether it names a function: MODULE:NAME that is no file and no audited plan."""
    return ":" in what and not what.startswith("audit:") and not Path(what).exists()


def _plan(what: str, options: dict[str, Any]) -> Any:
    from shardwise.plans import load_plan
    from shardwise.plans.named import plan_path

    for name in ("args", "mesh"):
        if options[name]:
            raise BadRequest(f"--{name} is of functions; the plan '{what}' has its own")
    return load_plan(plan_path(what), dict(_pair(text, "--set") for text in options["sets"]))


def _limits(options: dict[str, Any]) -> Any:
    from shardwise.workflows.compile import limits_of

    kept = int(parse_bytes(options["cache_size"], "--cache-size"))
    return limits_of(
        seconds=options["timeout"],
        memory_bytes=int(parse_bytes(options["memory"], "--memory")),
        cache_bytes=None if options["no_cache"] else kept,
    )


def _mesh(text: str | None) -> dict[str, int] | None:
    from shardwise.sharding import Mesh

    return None if text is None else dict(Mesh.parse(text))


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadRequest(f"{option} '{text}' is not NAME=VALUE")
    return name, value


def watcher() -> Any:
    """A line on a terminal: what the child is at, and for how long; None where nobody watches."""
    if not sys.stderr.isatty():
        return None

    def show(stage: str, seconds: float) -> None:
        click.echo(f"\r\x1b[2K{stage}, {seconds:.0f} s", nl=False, err=True)

    return show


def _render(results: Sequence[dict[str, Any]], out: Path | None) -> None:
    for result in results:
        _render_program(result)
        click.echo()
    if out is not None:
        click.echo(f"Report in {out}")


def _render_program(r: dict[str, Any]) -> None:
    mesh = mesh_text({axis: n for axis, n in r["mesh"].items() if n > 1})
    click.echo(f"{r['phase']} on {r['slice']}, {mesh}: {'fits' if r['fits'] else 'does not fit'}")
    seconds, peak = r["seconds"], r["process_peak_bytes"]
    took = f"compiled in {format_seconds(seconds['compile'])}, process {format_gib(peak)}"
    click.echo(f"  {'from the cache; ' if r['cached'] else ''}{took}")
    click.echo()
    said = [r[name]["predicted"] is not None for name in ("peak_bytes", "flops")]
    rows = [
        ["peak memory", *_two(r["peak_bytes"], format_gib)],
        ["usable", "", format_gib(r["usable_bytes"]), ""],
        ["FLOPs per step", *_two(r["flops"], format_count)],
    ]
    for row in r["collectives"]:
        both = {side: row[side] and row[side]["bytes"] for side in ("predicted", "compiled")}
        times = [f"{row[s]['count']:g}" if row[s] else "-" for s in ("predicted", "compiled")]
        name = f"{row['kind']} over {'+'.join(row['axes']) or '?'} ({' / '.join(times)} times)"
        rows.append([name, *_two(both, format_bytes)])
    times = {side: r["step_seconds"][side] for side in ("predicted", "compiled")}
    if times["compiled"]:
        both = {side: bounds and bounds["expected"] for side, bounds in times.items()}
        rows.insert(3, ["step time, expected", *_two(both, format_seconds)])
    header = ["per device", "predicted", "compiled", "difference"]
    if not any(said):
        header, rows = ["per device", "compiled"], [[row[0], row[2]] for row in rows]
    table(header, rows)
    if r["memory_by_kind"]["compiled"]:
        click.echo()
        kinds = {**r["memory_by_kind"]["arguments"], **_parts(r["memory_by_kind"]["compiled"])}
        table(["memory as compiled", "bytes"], [[k, format_bytes(v)] for k, v in kinds.items()])


def uncounted(r: dict[str, Any]) -> str:
    """The warning that a program has ops which the compiled text says nothing of."""
    names = r["unknown_ops"]
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"{r['phase']}: {many(len(names), 'op')} without FLOPs or bytes in the compiled text, such "
        f"as kernels of Pallas, are not in its figures: {some}"
    )


def _parts(memory: dict[str, int]) -> dict[str, int]:
    return {k: v for k, v in memory.items() if v and k not in ("arguments", "peak")}


def _two(pair: dict[str, Any], text: Any) -> list[str]:
    one, other = pair["predicted"], pair["compiled"]
    if one is None:
        return ["-", text(other), ""]
    part = f"{100 * (other / one - 1):+.1f} %" if one and other else ""
    return [text(one), text(other), part]
