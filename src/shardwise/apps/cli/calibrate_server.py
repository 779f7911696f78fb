"""`shardwise calibrate PLAN`: measure a live server and fit what its machine has of its own."""

from datetime import date
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, forced
from shardwise.apps.cli.options import given, hardware_of
from shardwise.apps.cli.output import document, emit, table
from shardwise.apps.cli.progress import progress_line
from shardwise.boundary import check_output, write_text
from shardwise.errors import BadRequest
from shardwise.evidence.calibration.endpoint import load, measure
from shardwise.evidence.calibration.replay import Machine, ServedRequest, read_records
from shardwise.evidence.calibration.server import (
    ServerCalibration,
    calibrate_records,
    calibration_result,
    engine_text,
    hardware_text,
    machine_of_plan,
)
from shardwise.units import format_seconds, sig


def calibrate_server(plan: Path, out: Path | None, as_json: bool, options: dict[str, Any]) -> None:
    """Measure, or read records; fit, write, show."""
    check_outputs(options["records_path"])
    if out is not None:
        check_output(_beside(out), "-o", force=forced())
    if bool(options["endpoint"]) == bool(options["records_path"]):
        raise BadRequest("give either --endpoint URL or --records FILE")
    machine = machine_of_plan(
        plan, hardware_of(options), kv_tokens=options["kv_tokens"], engine=options["engine"]
    )
    records = _records(machine, options)
    show = progress_line("calibrating", "replays")
    found = calibrate_records(records, machine, (lambda n: show(n, 0)) if show else None)
    result = calibration_result(found)
    where = options["endpoint"] or options["records_path"]
    source = f"calibrated on {found.records} requests of {where} on {date.today().isoformat()}"
    files = _write(found, out, source)
    inputs = {"plan": str(plan), "out": None if out is None else str(out), **given(options)}
    emit(
        document(inputs=inputs, result={**result, "files": files}),
        as_json,
        lambda: _render(found, result, files),
    )


def _records(machine: Machine, options: dict[str, Any]) -> list[ServedRequest]:
    if options["records_path"]:
        return read_records(Path(options["records_path"]))
    plan = machine.plan
    asks = load(options["requests"], options["rate"], plan.input_length, plan.output_length)
    return measure(
        options["endpoint"],
        options["served_model"] or plan.model,
        machine.cfg.vocabulary,
        asks,
        progress=progress_line("measuring", "requests"),
    )


def _beside(out: Path) -> Path:
    """The engine's file."""
    return out.with_suffix(".engine.toml")


def _write(found: ServerCalibration, out: Path | None, source: str) -> list[str]:
    if out is None:
        return []
    beside = _beside(out)
    write_text(out, hardware_text(found, source), option="-o")
    write_text(beside, engine_text(found.after.engine, source), option="-o")
    return [str(out), str(beside)]


def _render(found: ServerCalibration, result: dict[str, Any], files: list[str]) -> None:
    click.echo(
        f"{result['chip']} with {result['engine']}, calibrated on {found.records} requests\n"
    )
    values = result["values"]
    table(
        ["value", "before", "after"],
        [[name, sig(v["before"]), sig(v["after"])] for name, v in values.items()],
    )
    click.echo()
    errors, measured = result["errors"], result["measured"]
    table(
        ["of the load", "measured", "predicted before", "after"],
        [
            [
                name,
                format_seconds(measured[name]),
                f"{errors['before'][name]:+.1%}",
                f"{errors['after'][name]:+.1%}",
            ]
            for name in measured
        ],
    )
    for file in files:
        click.echo(f"wrote {file}")
