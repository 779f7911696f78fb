"""`shardwise simulate`: a serving plan under a trace or a made load, request by request."""

from math import inf
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.options import hardware_options, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.progress import progress_line
from shardwise.errors import BadRequest

_file = click.Path(dir_okay=False, path_type=Path)
_TRACES = (
    "Azure, Vidur (arrived_at in seconds), Mooncake or LLMServingSim (timestamp in milliseconds), "
    "ServeGen, or own JSONL: arrival in seconds, prompt and output in tokens."
)


@click.command(cls=AnswerCommand)
@click.argument("path", metavar="PLAN", type=_file)
@click.option("--trace", type=_file, help=_TRACES)
@click.option("--requests", help="The first so many of a trace, or how many to make (see above).")
@click.option(
    "--rate", help="Requests per second: make them, or speed a trace up; else the plan's own load."
)
@click.option("--speed", help="Replay a trace so many times as fast.")
@click.option(
    "--tile",
    default="1",
    help="Repeat the load so many times.",
)
@click.option(
    "--cv",
    help="Burstiness of made requests; 1 (default) is Poisson.",
)
@click.option("--input", help="Prompt tokens of made requests; else the plan's.")
@click.option("--output", help="Answer tokens of made requests; else the plan's.")
@click.option("--lengths", metavar="FILE:CATEGORY", help="Draw lengths from ServeGen's quantiles.")
@click.option("--seed", default="0", show_default=True, help="Of everything that is drawn.")
@click.option("--ttft", help="Objective: longest time to the first token, such as 2s.")
@click.option("--tpot", help="Objective: longest time per output token, such as 50ms.")
@click.option("--e2e", help="Objective: longest time to the last token, such as 30s.")
@click.option("--find-rate", is_flag=True, help="The largest rate that holds (see above).")
@click.option(
    "--check", metavar="SHARE", help="Exit with 4 where fewer meet the objectives, such as 99%."
)
@plot_option("Latencies and queues as a PNG or SVG.")
@file_option(
    "--perfetto",
    "steps_path",
    endings=(".json", ".json.gz"),
    help="Every step as a trace file for ui.perfetto.dev.",
)
@click.option("--perfetto-until", help="The trace file ends after so much time, such as 60s.")
@hardware_options(constants=None)
@sections_options("detail")
@csv_option
@json_option
def simulate(**options: Any) -> None:
    """Run a load through the replicas of a serving plan with the scheduler that would run them.

    A run looks at 2000 requests once the servers are full; bursts (--cv), --lengths, --tile, and
    plans without a load of their own make 1000. It says whether this one run is within targets. A
    rate holds (--find-rate) where 95 % of its requests are, in slow runs too, with 5 % of every
    target to spare.

    --set scheduling.policy=interleaved changes a field of the plan first; --csv has a row for each
    request.
    """
    from shardwise.commands.plan_serve.simulate import SimulateRequest

    check_outputs()
    until, steps = _until(options), options["steps_path"]
    answer = request_of(SimulateRequest, options).answer(
        progress_line("simulating", "requests"), keep_steps=steps is not None
    )
    show_answer(answer, options)
    if options["plot_path"]:
        from shardwise.apps.cli.simulate_chart import plot_simulation

        plot_simulation(answer.simulated, options["plot_path"])
    if steps:
        from shardwise.planner.price.trace import write_events
        from shardwise.planner.simulate.step_trace import step_events

        write_events(step_events(answer.simulated.outcome, until), steps, "--perfetto")
    answer.verify()


def _until(options: dict[str, Any]) -> float:
    """The end of the trace file in seconds."""
    if options["perfetto_until"] is None:
        return inf
    if options["steps_path"] is None:
        raise BadRequest("--perfetto-until is the end of a trace file; name it with --perfetto")
    from shardwise.units import parse_seconds

    return parse_seconds(options["perfetto_until"], "--perfetto-until")
