"""`shardwise book`: its numbers, rules, figures, errata and quizzes, worked out live."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.command import AnswerGroup
from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.numbers import SEED
from shardwise.apps.cli.options import parameters, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.errors import BadRequest

if TYPE_CHECKING:
    from shardwise.commands.tables.book_figure import FigureAnswer
    from shardwise.commands.tables.book_rule import RuleSweep


set_option = click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="Another value; may be repeated."
)
chapter_option = click.option("--chapter", help="Only this chapter, such as 5.")


def edition_options(constants: str) -> Callable[[Any], Any]:
    """--edition, and --constants with what else they take."""

    def decorate(command: Any) -> Any:
        command = click.option(
            "--constants", metavar=constants, help="Whose numbers for the chips."
        )(command)
        return click.option(
            "--edition",
            default="latest",
            show_default=True,
            metavar="latest|first",
            help="Which edition of the book: its values, its constants.",
        )(command)

    return decorate


@click.group(cls=AnswerGroup)
def book() -> None:
    """The numbers, rules and figures of the book, worked out live, and the plans it audits."""


@book.command("list")
@chapter_option
@sections_options("detail")
@json_option
def list_(chapter: Any, **_: Any) -> None:
    """Ids that `book show`, `book figure` and `plan show audit:NAME` take."""
    options = parameters()
    from shardwise.commands.tables.book import BookListRequest

    inputs = {"chapter": chapter} if chapter else {}
    show_answer(request_of(BookListRequest, options).answer(), options, inputs=inputs)


@book.command("figure")
@click.argument("figure_id", metavar="ID")
@set_option
@csv_option
@plot_option("Also draw the figure (.png or .svg).")
@file_option("--html", "html_path", endings=(".html",), help="A simulator's frames as one page.")
@sections_options("detail")
@json_option
def figure_(
    html_path: Path | None, figure_id: Any, sets: Any, plot_path: Path | None, **_: Any
) -> None:
    """A figure as data, or a machine step by step: systolic, hbm, collective, pipeline, batching.

    What --set takes stands below the answer, such as --set chips=512 or --set side=8.
    """
    options = parameters()
    from shardwise.commands.tables.book_figure import FigureRequest, SimulationAnswer

    check_outputs()
    answer = request_of(FigureRequest, options).answer()
    simulated = isinstance(answer, SimulationAnswer)
    if html_path and not simulated:
        raise BadRequest(f"--html shows frames, which {options['figure_id']} has not; use --plot")
    show_answer(answer, options, inputs={"id": figure_id, "set": list(sets)})
    if plot_path:
        _draw(answer, plot_path)
    if html_path:
        from shardwise.apps.cli.player import write_player

        assert isinstance(answer, SimulationAnswer)
        write_player(answer, html_path, option="--html")


def _draw(answer: Any, path: Path) -> None:
    from shardwise.commands.tables.book_figure import FigureAnswer

    if isinstance(answer, FigureAnswer):
        _plot(answer, path)
        return
    from shardwise.apps.cli.simulation_pictures import draw_simulation

    draw_simulation(answer, path)


@book.command("show")
@click.argument("entry_id", metavar="ID")
@set_option
@edition_options("book|seed|vendor")
@sections_options("detail")
@csv_option
@json_option
def show_(**options: Any) -> None:
    """One number: inputs, formulas, steps, the answer, and what the book prints."""
    from shardwise.commands.tables.book_show import BookShowRequest

    check_outputs()
    show_answer(request_of(BookShowRequest, options).answer(), options)


@book.command("rule")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--on", help="A chip whose numbers the rule takes, such as v5p.")
@set_option
@click.option(
    "--sweep", metavar="NAME=FIRST:LAST:POINTS", help="Its value over a range, at equal ratios."
)
@edition_options("book|seed|vendor")
@csv_option
@plot_option("Also draw the sweep (.png or .svg).")
@sections_options("detail")
@json_option
def rule_(plot_path: Path | None, sweep: Any, **_: Any) -> None:
    """A closed form with any chip, lists of values, or a sweep; without a name, all of them."""
    options = parameters()
    from shardwise.commands.tables.book_rule import BookRuleRequest

    check_outputs()
    if plot_path and not sweep:
        raise BadRequest("--plot draws a sweep; add --sweep NAME=FIRST:LAST:POINTS")
    answer = request_of(BookRuleRequest, options).answer()
    show_answer(answer, options)
    if plot_path:
        from shardwise.commands.tables.book_rule import RuleSweep

        assert isinstance(answer, RuleSweep)
        _plot_sweep(answer, plot_path)


@book.command("quiz")
@click.argument("entry_id", metavar="[ID]", required=False)
@click.option("--answer", "answers", metavar="NUMBERS", help="Your answer, such as 0.017,1880.")
@chapter_option
@click.option("--seed", type=SEED, default=0, show_default=True, help="Draws the question.")
@json_option
def quiz_(as_json: bool, **_: Any) -> None:
    """A question; with --answer, or once typed, whether that is right, and the steps."""
    options = parameters()
    from shardwise.commands.tables.book_quiz import BookQuiz, BookQuizRequest

    answer = request_of(BookQuizRequest, options).answer()
    show_answer(answer, options)
    if isinstance(answer, BookQuiz) and not as_json and sys.stdin.isatty():
        typed = click.prompt("answer")
        checked = BookQuizRequest(answer.id, answers=typed).answer()
        show_answer(checked, options)


@book.command("errata")
@chapter_option
@edition_options("book|seed|vendor")
@sections_options("detail")
@csv_option
@json_option
def errata_(**options: Any) -> None:
    """Numbers that the book prints and its rules do not give, each computed now."""
    from shardwise.commands.tables.book_errata import BookErrataRequest

    check_outputs()
    show_answer(request_of(BookErrataRequest, options).answer(), options)


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
