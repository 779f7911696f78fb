"""`shardwise plan serve`: the smallest slice within the targets, or the cheapest fleet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.numbers import WHOLE
from shardwise.apps.cli.options import hardware_options, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.progress import progress_line


@click.command(cls=AnswerCommand)
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@click.option("--on", required=True, help="A bare chip (v5e) or a slice (v5e:4x4).")
@click.option("--input", help="Tokens of the prompt, such as 8192.")
@click.option("--output", help="Tokens of the answer, such as 512.")
@click.option("--tpot", help="Longest expected time per output token, such as 15ms.")
@click.option("--ttft", help="Longest expected time to the first token, such as 1s.")
@click.option(
    "--batch",
    help="Sequences decoded at once (240 or 240seq); else as many as give most tokens/s per chip "
    "within the targets. Not with cost.",
)
@click.option(
    "--weights", help="Dtype of the weights. [default: checkpoint; the cheaper with cost]"
)
@click.option("--kv", help="Dtype of the KV cache. [default: bf16; the cheaper with cost]")
@click.option("--activations", help="Dtype between matmuls. [default: bf16]")
@click.option("--compute", help="Dtype of the matmuls; bf16 where the chip has it.")
@click.option(
    "--engine",
    help="The serving software, for what it was measured to add: vllm, sglang, trtllm, others, or "
    "ideal, which adds nothing. [default: ideal; others with cost]",
)
@click.option(
    "--prefill-chunk", help="Most tokens at once. [default: 8192; the cheapest with cost]"
)
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="AXIS=DEGREE",
    help="Fix a mesh degree; may be repeated.",
)
@click.option(
    "--objective",
    type=click.Choice(["smallest", "cost"]),
    default="smallest",
    show_default=True,
    help="The most tokens/s per chip on the smallest slice, or the cheapest fleet under a load.",
)
@click.option("--rate", help="Cost: requests per second that come; else as many as they can take.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Cost: requests of a file, for --rate, --input and --output.",
)
@click.option("--e2e", help="Cost: longest time from arrival to the last token, such as 30s.")
@click.option("--percentile", help="Cost: requests within the targets, such as 90%. [default: 90%]")
@click.option(
    "--confirm/--no-confirm", default=None, help="Cost: simulate the best plans. [default: yes]"
)
@click.option("--mfu", help="Prefill at this share of peak by 2*params*tokens, such as 40%.")
@click.option("--params", help="Replace the parameter count in --mfu's arithmetic, such as 70e9.")
@click.option(
    "--top", type=WHOLE, default=3, show_default=True, help="Runner-up meshes to show, up to 50."
)
@file_option("-o", "plan_path", help="Plan file.")
@plot_option("The front, with cost also a decode step's parts, as a PNG or SVG.")
@hardware_options()
@csv_option
@json_option
def serve(**options: Any) -> None:
    """Find the smallest slice that holds the model and meets the targets, and the mesh and batch
    with most tokens/s per chip on it; with --objective cost the cheapest servers under a load (--on
    takes several chips: v5e,h100)."""
    from shardwise.plans import save_plan
    from shardwise.verbs.plan_serve import ServePlanRequest, ServerPlanned

    check_outputs()
    answer = request_of(ServePlanRequest, options).answer(progress_line("searching", "parts"))
    path, more = options["plan_path"], ()
    if path:
        save_plan(answer.planning.plan, path)
        then = "try it on a trace with: shardwise simulate"
        if isinstance(answer, ServerPlanned):
            then = "price it again with: shardwise plan show"
            answer = replace(answer, warnings=[*answer.warnings, answer.apart(path)])
        more = (f"Plan written to {path}; {then} {path}",)
    if options["plot_path"]:
        from shardwise.apps.cli.serve_chart import plot_fleets, plot_servers

        plot = plot_servers if isinstance(answer, ServerPlanned) else plot_fleets
        plot(answer.result, answer.planning.request.cfg.name, options["plot_path"])
    show_answer(answer, options, more=more)
