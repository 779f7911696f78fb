"""`shardwise validate`: predicted against measured times of published runs."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, plot_option
from shardwise.apps.cli.options import given, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.plan_train_options import evidence_option
from shardwise.apps.cli.progress import progress_line
from shardwise.errors import BadRequest


@click.command(cls=AnswerCommand)
@click.argument(
    "path",
    metavar="[TABLE.csv]",
    required=False,
    type=click.Path(dir_okay=False, path_type=Path),
)
@click.option("--serving", is_flag=True, help="Serving measurements: time per output token, TTFT.")
@click.option("--source", multiple=True, metavar="S", help="Only rows of this source; repeatable.")
@click.option("--grade", metavar="A|B", help="Only rows of this grade.")
@click.option("--no-fit", is_flag=True, help="Chip rates alone: no efficiency, no fitted constant.")
@click.option(
    "--check",
    metavar="MEDIAN",
    help="Exit with 4 where the median absolute error is larger, such as 10%.",
)
@evidence_option
@click.option("--detail", is_flag=True, help="Name every row that is left out, and the worst.")
@plot_option("Predicted against measured as a PNG or SVG.")
@csv_option
@json_option
def validate(**options: Any) -> None:
    """Price every run of a table of measurements on its own plan and compare step times.

    Without a table: the published runs that come with shardwise, each with its citation. The
    constants were fitted on those, so each is predicted by a fit without its group; what the
    constants of today say of it comes second, as the in-sample error.
    """
    from shardwise.commands.tables.validate import TrainingValidated, ValidateRequest

    check_outputs()
    if options["serving"] and options["plot_path"]:
        raise BadRequest("--plot cannot take effect with --serving; leave it out")
    request = request_of(ValidateRequest, options)
    answer = request.answer(progress_line("validating", "runs"))
    asked = {name: value for name, value in options.items() if name != "path"}
    inputs = {"path": str(request.table), **given(asked)}
    show_answer(answer, options, inputs=inputs, warnings_first=True)
    if options["plot_path"]:
        from shardwise.apps.cli.validate_plot import plot

        assert isinstance(answer, TrainingValidated)
        plot(answer, options["plot_path"])
    answer.checked()
