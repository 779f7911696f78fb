"""`shardwise calibrate` without a plan: measure the devices here."""

import sys
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.compile import watcher
from shardwise.apps.cli.files import forced
from shardwise.apps.cli.options import given
from shardwise.apps.cli.output import document, emit, table
from shardwise.apps.cli.parts import needed_for
from shardwise.boundary import check_output, write_text
from shardwise.errors import BadRequest
from shardwise.units import format_rate, format_seconds


def calibrate_machine(out: Path | None, as_json: bool, options: dict[str, Any]) -> None:
    """Measure, write, show."""
    if out is None:
        raise BadRequest("name the hardware file to write: -o FILE.toml")
    check_output(out, "-o", force=forced(), endings=(".toml",))
    with needed_for("calibrating"):
        from shardwise.evidence.calibration import machine as machine

    try:
        found = machine.calibrate_machine(
            options["name"],
            cpu_devices=options["cpu_devices"],
            seconds=options["timeout"],
            watch=watcher(),
        )
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[2K", nl=False, err=True)
    write_text(out, found.text, option="-o")
    result = {**machine.calibration_result(found), "file": str(out)}
    doc = document(inputs={**given(options), "out": str(out)}, result=result)
    emit(doc, as_json, lambda: _render(result))


def _render(r: dict[str, Any]) -> None:
    click.echo(f"{r['devices']} x '{r['kind']}', each with all at work")
    click.echo()
    rows = [
        [f"matmul {dtype}, best", format_rate(rate, "FLOP/s")]
        for dtype, rate in r["peak_flops"].items()
    ]
    rows += [[f"matmul {d}, of all sizes", f"{100 * s:.0f} %"] for d, s in r["matmul"].items()]
    rows += [
        ["a matmul's ramp", format_seconds(r["matmul_ramp_seconds"])],
        ["attention", f"{100 * r['attention']:.0f} %"],
        ["memory", format_rate(r["hbm_bandwidth"], "B/s")],
        ["elementwise work", f"{100 * r['hbm']:.0f} %"],
        ["an op's overhead", format_seconds(r["op_overhead_seconds"])],
    ]
    if r["pair_oneway"]:
        rows.append(["link of a pair", format_rate(r["pair_oneway"], "B/s")])
        rows.append(["hop", format_seconds(r["hop_seconds"])])
    table(["measured", "per device"], rows)
    click.echo(f"\nWrote {r['file']}: --hw {r['file']} --on {r['slice']}")
