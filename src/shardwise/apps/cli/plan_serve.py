"""`shardwise plan serve`: the cheapest servers for a load within its targets."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.options import as_option, hardware_options, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.plan_train_options import compile_options
from shardwise.apps.cli.progress import progress_line, stage_line


@click.command(cls=AnswerCommand)
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@as_option
@click.option(
    "--on", required=True, help="A chip (h100), several (h100,b200,v5p), or a slice (h100:8)."
)
@click.option("--input", help="Tokens of the prompt, such as 8192.")
@click.option("--output", help="Tokens of the answer, such as 512.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of requests, whose lengths and rate are taken.",
)
@click.option(
    "--rate", help="Requests per second that come at random. [default: the most that hold]"
)
@click.option("--ttft", help="Longest time to the first token, such as 1s. [default: 2s]")
@click.option("--tpot", help="Longest time per output token, such as 30ms.")
@click.option("--e2e", help="Longest time from arrival to the last token, such as 30s.")
@click.option(
    "--for",
    "software",
    metavar="vllm|sglang|jax|any",
    help="The software that serves; jax is our own (shardwise serve). [default: vllm]",
)
@click.option(
    "--pools",
    default="one",
    show_default=True,
    metavar="one|two|any",
    help="Whether prompts have servers of their own (two).",
)
@click.option("--max-chips", help="The most chips of all servers.")
@click.option("--weights", help="Dtype of the weights. [default: the checkpoint's]")
@click.option("--kv", help="Dtype of the KV cache. [default: bf16]")
@click.option("--batch", help="The most sequences of a server at once.")
@click.option("--prefill-chunk", help="The most tokens of a step.")
@click.option(
    "--memory-share",
    help="Share of the memory that a server takes, as its engine means it. [default: 0.9]",
)
@click.option(
    "--release",
    help="Release of the engine whose memory is counted, such as 0.11. [default: the newest known]",
)
@click.option("--eager", is_flag=True, help="The engine captures no graphs of its steps.")
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="AXIS=DEGREE",
    help="Fix a mesh degree; may be repeated.",
)
@file_option("-o", "plan_path", help="Plan file.")
@click.option("--anyway", is_flag=True, help="Answer with, and write, a plan that does not hold.")
@compile_options(
    "Compile decode and prefill of the best plans for our server until N fit, three times as many "
    "at most (implies --for jax; a minute or two each on a core, then kept): the cheapest as "
    "compiled is the answer."
)
@plot_option("The front of speed and cost, and a decode step's parts, as a PNG or SVG.")
@hardware_options()
@sections_options("detail", "why")
@csv_option
@json_option
def serve(**options: Any) -> None:
    """Find the cheapest servers that hold a load: 95 % of its requests within the targets, as
    simulated, in slow runs too with 5 % of every target to spare. Without --rate it is the largest
    load that one server holds, or all of a slice."""
    from shardwise.commands.plan_serve.serve import ServePlanRequest, next_line
    from shardwise.plans import save_plan

    check_outputs()
    with stage_line() as watch:
        asked = request_of(ServePlanRequest, options)
        answer = asked.answer(progress_line("simulating", "runs"), watch)
    path = options["plan_path"]
    if path:
        save_plan(answer.plan, path)
    show_answer(answer, options, more=(next_line(asked, path, answer),))
    if options["plot_path"]:
        from shardwise.apps.cli.serve_chart import plot_serving

        plot_serving(answer, options["plot_path"])
