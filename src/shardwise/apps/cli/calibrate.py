"""`shardwise calibrate`: measure what runs here or elsewhere, and write it as a hardware file."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.calibrate_server import calibrate_server
from shardwise.apps.cli.options import hardware_options
from shardwise.apps.cli.output import json_option


@click.command()
@click.argument("plan", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible server that runs the plan.")
@click.option("--records", "records_path", metavar="FILE", help="Records of its requests instead.")
@click.option("--served-model", metavar="NAME", help="Its name for the model; default the plan's.")
@click.option("--requests", default=64, show_default=True, help="Requests to send.")
@click.option("--rate", default=4.0, show_default=True, help="Requests per second.")
@click.option("--kv-tokens", default=0, help="Tokens that its cache holds; default counted.")
@click.option("--engine", default="", metavar="NAME", help="Start from it; default the plan's.")
@click.option(
    "-o",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Hardware file; the engine goes beside it as FILE.engine.toml.",
)
@hardware_options(price=False)
@json_option
def calibrate(plan: Path, out: Path | None, as_json: bool, **options: Any) -> None:
    """Fit the chip's and the engine's own numbers on a short load on the server of PLAN.

    The load streams completions of random prompts around the plan's lengths. What comes out is a
    hardware file for --hw and an engine file for --engine.
    """
    calibrate_server(plan, out, as_json, options)
