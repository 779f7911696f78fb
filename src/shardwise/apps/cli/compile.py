"""`shardwise compile`: a plan, or any JAX function, by the real compiler for a slice elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import document_of, show_answer, stage_line
from shardwise.boundary.records import plain
from shardwise.errors import NoFeasiblePlan

if TYPE_CHECKING:
    from shardwise.commands.program.programs import ProgramRequest


@command(
    "compile",
    "show_detail as_json out plot_path",
    plot_path="Memory over the schedule, and what fills it at the peak: .png or .svg.",
)
def compile_(out: Outputs) -> None:
    """Compile the programs of a plan, or a function, for a slice; no accelerator is needed.

    Shows predicted and compiled figures side by side. If a program does not fit, the exit code is
    3 and the answer names its largest buffers.
    """
    from shardwise.commands.program.compile import CompileRequest
    from shardwise.commands.program.compile_report import write_report

    asked = request_of(CompileRequest)
    with stage_line() as watch:
        answer = asked.answer(watch)
    inputs, folder = program_inputs(asked, out), out.out
    more = [] if folder is None else [f"Report in {folder}"]
    if out.plot_path is not None:
        from shardwise.apps.cli.compile_plot import plot_memory

        plot_memory(answer.made, out.plot_path)
        more.append(f"Plot in {out.plot_path}")
    if folder is not None:
        doc = plain(document_of(answer, inputs))
        files = write_report(folder, answer.made, answer.plan, doc, answer.followed)
        answer = replace(answer, files=files)
    show_answer(answer, out, inputs, more=more)
    refuse_misses(answer.misses)


_FILES = ("as_json", "out", "plot_path", "graph", "capture", "phase", "save")


def program_inputs(
    asked: "ProgramRequest", out: Outputs, phase: str | None = None
) -> dict[str, object]:
    """What a document says was asked."""
    phases = {"phases": (phase,)} if phase else {}
    return given(asked, out, without=_FILES) | phases


def refuse_misses(misses: Sequence[str]) -> None:
    """Raise NoFeasiblePlan where a program does not fit, after it was shown."""
    if misses:
        raise NoFeasiblePlan("\n".join(misses))
