"""`shardwise bench serve`: a load on a live server."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand, AnswerGroup
from shardwise.apps.cli.numbers import NUMBER, WHOLE
from shardwise.apps.cli.options import key_options, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.progress import progress_line


@click.group(cls=AnswerGroup)
def bench() -> None:
    """Measure what runs."""


@bench.command(cls=AnswerCommand, name="serve")
@click.option("--endpoint", default="http://127.0.0.1:8000", show_default=True, metavar="URL")
@key_options
@click.option("--served-model", metavar="NAME", help="Default: the server's first.")
@click.option("--requests", type=WHOLE, default=100, show_default=True)
@click.option("--rate", type=NUMBER, help="Per second; default all at once.")
@click.option("--cv", type=NUMBER, default=1.0, help="Bursts: more above 1 (Poisson).  [1]")
@click.option("--input", type=WHOLE, default=128, show_default=True)
@click.option("--output", type=WHOLE, default=64, show_default=True)
@click.option(
    "--spread",
    type=NUMBER,
    default=0.0,
    help="Share that lengths vary by, both ways.  [0]",
)
@click.option("--trace", metavar="FILE", help="Requests, their times and shared beginnings.")
@click.option("--speed", type=NUMBER, default=1.0, help="Of a trace.  [1]")
@click.option(
    "--concurrency", type=WHOLE, default=0, help="Most under way at once; 0: no bound.  [0]"
)
@click.option("--vocabulary", type=WHOLE, default=1000, show_default=True)
@click.option(
    "--timeout", type=NUMBER, default=600.0, metavar="SECONDS", help="Of one whole request.  [600]"
)
@click.option("--seed", type=WHOLE, default=0, help="Of times, lengths and prompts.  [0]")
@csv_option
@json_option
def bench_serve(**options: Any) -> None:
    """Put a load on an OpenAI-compatible server: throughput and latencies.

    --json has the figures under the names of `vllm bench serve`.
    """
    from shardwise.commands.run.bench_serve import BenchServeRequest

    asked = request_of(BenchServeRequest, options)
    show_answer(asked.answer(progress_line("load", "requests")), options)
