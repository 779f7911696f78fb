"""`shardwise book`: its numbers, rules, figures, errata and quizzes, worked out live."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.command import AnswerGroup, command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer
from shardwise.errors import BadRequest

if TYPE_CHECKING:
    from shardwise.commands.tables.book_figure import FigureAnswer
    from shardwise.commands.tables.book_rule import RuleSweep


@click.group(cls=AnswerGroup)
def book() -> None:
    """Numbers, rules and figures of the book, computed live, and the published plans it audits."""


@command("book list", "show_detail as_json", book)
def list_(out: Outputs) -> None:
    """Ids that `book show`, `book figure` and `plan show audit:NAME` take."""
    from shardwise.commands.tables.book import BookListRequest

    asked = request_of(BookListRequest)
    show_answer(asked.answer(), out, {"chapter": asked.chapter} if asked.chapter else {})


@command(
    "book figure",
    "csv_path plot_path html_path show_detail as_json",
    book,
    plot_path="Also draw the figure (.png or .svg).",
    html_path="The frames of a simulator as one page.",
)
def figure_(out: Outputs) -> None:
    """A figure as data, or a machine step by step: systolic, hbm, collective, pipeline, batching.

    The answer names what --set takes, such as --set chips=512 or --set side=8.
    """
    from shardwise.commands.tables.book_figure import FigureRequest, SimulationAnswer

    asked = request_of(FigureRequest)
    answer = asked.answer()
    if out.html_path and not isinstance(answer, SimulationAnswer):
        raise BadRequest(f"--html shows frames, and {asked.figure_id} has none; use --plot")
    show_answer(answer, out, {"id": asked.figure_id, "set": asked.sets})
    if out.plot_path:
        _draw(answer, out.plot_path)
    if out.html_path:
        from shardwise.apps.cli.player import write_player

        assert isinstance(answer, SimulationAnswer)
        write_player(answer, out.html_path, option="--html")


def _draw(answer: Any, path: Path) -> None:
    from shardwise.commands.tables.book_figure import FigureAnswer

    if isinstance(answer, FigureAnswer):
        _plot(answer, path)
        return
    from shardwise.apps.cli.simulation_pictures import draw_simulation

    draw_simulation(answer, path)


@command("book show", "show_detail csv_path as_json", book)
def show_(out: Outputs) -> None:
    """One number of the book: inputs, formulas, steps, the answer, and what the book prints."""
    from shardwise.commands.tables.book_show import BookShowRequest

    asked = request_of(BookShowRequest)
    show_answer(asked.answer(), out, given(asked, out))


@command(
    "book rule",
    "csv_path plot_path show_detail as_json",
    book,
    plot_path="Also draw the sweep (.png or .svg).",
)
def rule_(out: Outputs) -> None:
    """A rule with any chip, lists of values, or a sweep; without a name, all rules."""
    from shardwise.commands.tables.book_rule import BookRuleRequest

    asked = request_of(BookRuleRequest)
    if out.plot_path and not asked.sweep:
        raise BadRequest("--plot draws a sweep; add --sweep NAME=FIRST:LAST:POINTS")
    answer = asked.answer()
    show_answer(answer, out, given(asked, out))
    if out.plot_path:
        from shardwise.commands.tables.book_rule import RuleSweep

        assert isinstance(answer, RuleSweep)
        _plot_sweep(answer, out.plot_path)


@command("book quiz", "as_json", book)
def quiz_(out: Outputs) -> None:
    """A question of the book: checks your answer, typed or by --answer, and shows the steps."""
    from shardwise.commands.tables.book_quiz import BookQuiz, BookQuizRequest

    asked = request_of(BookQuizRequest)
    answer, inputs = asked.answer(), given(asked, out)
    show_answer(answer, out, inputs)
    if isinstance(answer, BookQuiz) and not out.as_json and sys.stdin.isatty():
        typed = click.prompt("answer")
        show_answer(BookQuizRequest(answer.id, answers=typed).answer(), out, inputs)


@command("book errata", "show_detail csv_path as_json", book)
def errata_(out: Outputs) -> None:
    """Numbers of the book that differ from its rules, each computed now."""
    from shardwise.commands.tables.book_errata import BookErrataRequest

    asked = request_of(BookErrataRequest)
    show_answer(asked.answer(), out, given(asked, out))


def _plot_sweep(found: "RuleSweep", path: Path) -> None:
    from shardwise.apps.cli.pictures import new_figure, save_figure

    x, rows, drawing = found.sweep, found.rows, new_figure(8, 5)
    axes = drawing.add_subplot()
    for name in rows[0]:
        if name != x and all(isinstance(row[name], int | float) for row in rows):
            axes.plot([row[x] for row in rows], [row[name] for row in rows], label=name, marker=".")
    units = {one.name: one.unit for one in found.arguments}
    axes.set_xlabel(f"{x} [{units[x]}]" if units.get(x) else x)
    axes.set_ylabel(f"{found.name} [{found.unit}]" if found.unit else found.name)
    axes.set_xscale("log")
    if all(line.get_ydata().min() > 0 for line in axes.lines):
        axes.set_yscale("log")
    axes.set_title(f"{found.name} = {found.formula}\n{found.source}", fontsize=10)
    axes.legend(fontsize=8)
    save_figure(drawing, path)


def _plot(found: "FigureAnswer", path: Path) -> None:
    from shardwise.apps.cli.pictures import new_figure, save_figure

    drawing = new_figure(8, 5)
    axes = drawing.add_subplot()
    for series in found.series:
        drawn = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y > 0]
        if drawn:
            axes.plot(*zip(*drawn, strict=True), label=series.label, marker="." * (len(drawn) < 20))
    axes.set_xlabel(str(found.x))
    axes.set_ylabel(str(found.y))
    if found.x.log:
        axes.set_xscale("log")
    if found.y.log:
        axes.set_yscale("log")
    axes.set_title(f"{found.title}\n{found.source}", fontsize=10)
    axes.legend(fontsize=8)
    save_figure(drawing, path)
