"""`shardwise calibrate`: measure what runs here or elsewhere, and write it as a hardware file."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import file_option
from shardwise.apps.cli.numbers import DEVICES, SECONDS, Number, Whole
from shardwise.apps.cli.options import hardware_options, refuse
from shardwise.apps.cli.output import json_option
from shardwise.apps.cli.parts import needed_for

MACHINE = ("cpu_devices", "name", "timeout")
"""Options of a calibration of the devices here; the others are of a server's."""


@click.command()
@click.argument("plan", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--cpu-devices", type=DEVICES, metavar="N", help="Here: measure N virtual CPU devices."
)
@click.option("--name", default="here", show_default=True, help="Here: of the chip in the file.")
@click.option(
    "--timeout", type=SECONDS, default=900.0, metavar="SECONDS", help="Here: of the whole.  [900]"
)
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible server that runs the plan.")
@click.option("--records", "records_path", metavar="FILE", help="Records of its requests instead.")
@click.option("--served-model", metavar="NAME", help="Its name for the model; default the plan's.")
@click.option(
    "--requests",
    type=Whole(least=1, most=100_000),
    default=64,
    show_default=True,
    help="Requests to send.",
)
@click.option(
    "--rate",
    type=Number(above=0, most=1e6),
    default=4.0,
    show_default=True,
    help="Requests per second.",
)
@click.option(
    "--kv-tokens",
    type=Whole(most=10**12),
    default=0,
    help="Tokens that its cache holds; default counted.",
)
@click.option("--engine", default="", metavar="NAME", help="Start from it; default the plan's.")
@file_option(
    "-o",
    "out",
    help="Hardware file, for --hw; a server's engine goes beside it as FILE.engine.toml.",
)
@hardware_options(price=False)
@json_option
def calibrate(plan: Path | None, out: Path | None, as_json: bool, **options: Any) -> None:
    """Measure the devices here, or the server of PLAN, and write what was found.

    Without PLAN: matmuls, memory, attention and collectives of this machine, as a hardware file
    that prices plans on it (`--hw FILE --on NAME:DEVICES`).

    With PLAN: the chip's and the engine's own numbers, fitted on a short load on a live server
    (--endpoint) or on records of one. The load streams completions of random prompts around the
    plan's lengths.
    """
    theirs = {k: options.pop(k) for k in MACHINE}
    if plan is None:
        refuse(
            (p.name for p in calibrate.params if p.name in options),
            "is of servers; name their PLAN",
        )
        from shardwise.apps.cli.calibrate_machine import calibrate_machine

        calibrate_machine(out, as_json, theirs)
        return
    refuse(MACHINE, "is of this machine's devices; leave PLAN out")
    with needed_for("calibrating"):
        from shardwise.apps.cli.calibrate_server import calibrate_server

    calibrate_server(plan, out, as_json, options)
