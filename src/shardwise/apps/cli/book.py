"""`shardwise book list|figure`: the book's figures as data, and the published plans it audits."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.command import AnswerGroup
from shardwise.apps.cli.files import check_outputs, plot_option
from shardwise.apps.cli.options import request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options

if TYPE_CHECKING:
    from shardwise.book.figures import Figure


@click.group(cls=AnswerGroup)
def book() -> None:
    """The book's figures as data, and the published plans that it audits."""


@book.command("list")
@click.option("--chapter", help="Only this chapter, such as 5.")
@json_option
def list_(**options: Any) -> None:
    """Ids that `book figure` and `plan show audit:NAME` take."""
    from shardwise.verbs.book import BookListRequest

    inputs = {"chapter": options["chapter"]} if options["chapter"] else {}
    show_answer(request_of(BookListRequest, options).answer(), options, inputs=inputs)


@book.command("figure")
@click.argument("figure_id", metavar="ID")
@csv_option
@plot_option("Also draw the figure (.png or .svg).")
@sections_options("detail")
@json_option
def figure_(**options: Any) -> None:
    """The data series of one figure, with what the text reads off it."""
    from shardwise.verbs.book import FigureRequest

    check_outputs()
    answer = request_of(FigureRequest, options).answer()
    if options["plot_path"]:
        _plot(answer.figure, options["plot_path"])
    show_answer(answer, options, inputs={"id": options["figure_id"]})


def _plot(found: "Figure", path: Path) -> None:
    from shardwise.apps.cli.pictures import new_figure, save_figure
    from shardwise.verbs.book import axis_text

    drawing = new_figure(8, 5)
    axes = drawing.add_subplot()
    for series in found.series:
        drawn = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y > 0]
        if drawn:
            axes.plot(*zip(*drawn, strict=True), label=series.label, marker="." * (len(drawn) < 20))
    axes.set_xlabel(axis_text(found, "x"))
    axes.set_ylabel(axis_text(found, "y"))
    if "x" in found.log:
        axes.set_xscale("log")
    if "y" in found.log:
        axes.set_yscale("log")
    axes.set_title(f"{found.title}\n{found.source}", fontsize=10)
    axes.legend(fontsize=8)
    save_figure(drawing, path)
