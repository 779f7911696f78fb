"""`shardwise explain`: where the time of a compiled step goes, and what in it is a mistake."""

import click

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.compile import program_inputs, refuse_misses
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer, stage_line
from shardwise.errors import ShardwiseError


@command(
    "explain", "show_detail as_json graph save", graph="Its dearest ops as a graph: .svg or .dot."
)
def explain(out: Outputs) -> None:
    """Explain a plan's program, or a function, as compiled for a slice that is not here.

    Seconds by component, source line and named scope, what bounds each, what is exposed, how the
    arguments lie on the mesh, and findings, each with its cost and a remedy.
    """
    from shardwise.commands.program.against import save_program
    from shardwise.commands.program.explain import ExplainRequest
    from shardwise.commands.program.explaining import write_graph

    asked = request_of(ExplainRequest)
    with stage_line() as watch:
        answer = asked.answer(watch)
    more = []
    if out.graph is not None:
        write_graph(out.graph, answer.graph, f"{answer.program.phase} on {answer.slice}")
        more = [f"Graph in {out.graph}"]
    if out.save is not None:
        save_program(out.save, answer.kept)
        more.append(f"Program in {out.save}, for --against")
    if answer.issue is not None and not out.as_json:
        click.echo(answer.issue)  # as it is: it is pasted elsewhere
    else:
        show_answer(answer, out, program_inputs(asked, out, asked.phase), more=more)
    refuse_misses(answer.misses)
    if answer.slower:
        raise ShardwiseError(answer.slower)
