"""`shardwise explain`: where the time of a compiled step goes, and what in it is a mistake."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.compile import PHASES, compile_options, program_inputs, refuse_misses
from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.options import request_of
from shardwise.apps.cli.output import show_answer
from shardwise.apps.cli.progress import stage_line


@click.command(cls=AnswerCommand)
@click.argument("what", metavar="PLAN|MODULE:FUNCTION")
@compile_options
@click.option("--phase", type=PHASES, help="Of a plan.")
@file_option("--graph", endings=(".svg", ".dot"), help="Its dearest ops as a graph: .svg or .dot.")
def explain(**options: Any) -> None:
    """Explain a plan's program, or a function, as compiled for a slice that is not here.

    Seconds by component, source line and named scope, what bounds each, what is exposed, how the
    arguments lie on the mesh, and findings, each with its cost and a remedy.
    """
    check_outputs(options["what"])
    from shardwise.commands.program.explain import ExplainRequest
    from shardwise.commands.program.explaining import write_graph

    path = options.pop("graph")
    with stage_line() as watch:
        answer = request_of(ExplainRequest, options).answer(watch)
    if path is not None:
        write_graph(path, answer.graph, f"{answer.program.phase} on {answer.slice}")
    more = [] if path is None else [f"Graph in {path}"]
    show_answer(answer, options, inputs=program_inputs(options), more=more)
    refuse_misses(answer.misses)
