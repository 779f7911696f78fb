"""`shardwise bench serve`: a load on a live server."""

import click

from shardwise.apps.cli.command import AnswerGroup, command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, show_answer


@click.group(cls=AnswerGroup)
def bench() -> None:
    """Measure a live server."""


@command("bench serve", "csv_path as_json", bench)
def bench_serve(out: Outputs) -> None:
    """Put a load on an OpenAI-compatible server: throughput and latencies.

    --json has the figures under the names of `vllm bench serve`.
    """
    from shardwise.commands.run.bench_serve import BenchServeRequest

    asked = request_of(BenchServeRequest)
    answer = asked.answer(progress_line("load", "requests"))
    show_answer(answer, out, given(asked, out))
