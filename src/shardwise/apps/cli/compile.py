"""`shardwise compile`: a plan, or any JAX function, by the real compiler for a slice elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, folder_option, plot_option
from shardwise.apps.cli.numbers import NUMBER, Word
from shardwise.apps.cli.options import given, request_of
from shardwise.apps.cli.output import document_of, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.progress import stage_line
from shardwise.boundary.records import plain
from shardwise.errors import NoFeasiblePlan

PHASES = Word(["train", "decode", "prefill"])


def compile_options(command: Any) -> Any:
    """Options of every command that compiles."""
    for option in reversed(
        (
            click.option("--on", metavar="SLICE", help="Slice; default that of the plan."),
            click.option("--args", metavar="MODULE:NAME", help="Makes a function's arguments."),
            click.option("--mesh", metavar="X=4,Y=2", help="Mesh of a function; default x, y, z."),
            click.option("--option", "xla", multiple=True, metavar="NAME=VALUE", help="For XLA."),
            click.option("--timeout", type=NUMBER, default=900.0, metavar="SECONDS", help="[900]"),
            click.option("--memory", default="12GiB", help="Of the compiling process.  [12GiB]"),
            click.option("--no-cache", is_flag=True, help="Compile anew and keep nothing."),
            click.option("--cache-size", default="2GiB", help="Most that is kept.  [2GiB]"),
            click.option(
                "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change a plan."
            ),
            click.option("--hw", "hw_files", multiple=True, metavar="FILE", help="Adds a chip."),
            sections_options("detail"),
            json_option,
        )
    ):
        command = option(command)
    return command


@click.command(cls=AnswerCommand, name="compile")
@click.argument("what", metavar="PLAN|MODULE:FUNCTION")
@compile_options
@click.option("--phase", "phases", multiple=True, type=PHASES, help="Of a serving plan; all.")
@click.option(
    "--stages",
    is_flag=False,
    flag_value="dearest",
    metavar="[OP]",
    help="Follow one op from jaxpr to schedule: the dearest, or a rank, FILE:LINE, scope or name.",
)
@folder_option("--out", help="Report folder.")
@plot_option("Memory over the schedule, and what fills it at the peak: .png or .svg.")
def compile_(**options: Any) -> None:
    """Compile a plan's programs, or a function, for a slice that is not here.

    No accelerator is needed. What was predicted stands beside what the compiler made. A program
    that does not fit ends with code 3 and names its largest buffers.
    """
    check_outputs(options["what"])
    from shardwise.commands.program.compile import CompileRequest
    from shardwise.commands.program.compile_report import write_report

    with stage_line() as watch:
        answer = request_of(CompileRequest, options).answer(watch)
    inputs, out = program_inputs(options), options["out"]
    more = [] if out is None else [f"Report in {out}"]
    if options["plot_path"] is not None:
        from shardwise.apps.cli.compile_plot import plot_memory

        plot_memory(answer.made, options["plot_path"])
        more.append(f"Plot in {options['plot_path']}")
    if out is not None:
        doc = plain(document_of(answer, inputs))
        files = write_report(out, answer.made, answer.plan, doc, answer.followed)
        answer = replace(answer, files=files)
    show_answer(answer, options, inputs=inputs, more=more)
    refuse_misses(answer.misses)


def program_inputs(options: dict[str, Any]) -> dict[str, Any]:
    """What a document says was asked."""
    phase = options.get("phase")
    asked = {
        k: v
        for k, v in options.items()
        if k not in ("as_json", "out", "phase", "capture", "plot_path", "graph")
    }
    return given(asked) | ({"phases": (phase,)} if phase else {})


def refuse_misses(misses: Sequence[str]) -> None:
    """Raise NoFeasiblePlan where a program does not fit, after it was shown."""
    if misses:
        raise NoFeasiblePlan("\n".join(misses))
