"""`shardwise validate`: predicted against measured times of published runs."""

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, show_answer
from shardwise.errors import BadRequest


@command(
    "validate",
    "plot_path csv_path as_json",
    plot_path="Predicted against measured as a PNG or SVG.",
)
def validate(out: Outputs) -> None:
    """Price every run of a table of measurements on its own plan and compare step times.

    Without a table it takes the published runs that ship with shardwise, each with its citation.
    The constants were fitted on these, so a fit without its group predicts each run. The in-sample
    error, with the present constants, comes second.
    """
    from shardwise.commands.tables.validate import TrainingValidated, ValidateRequest

    asked = request_of(ValidateRequest)
    if asked.serving and out.plot_path:
        raise BadRequest("--plot cannot take effect with --serving; leave it out")
    answer = asked.answer(progress_line("validating", "runs"))
    inputs = {"path": str(asked.table), **given(asked, out, without=("path",))}
    show_answer(answer, out, inputs, warnings_first=True)
    if out.plot_path:
        from shardwise.apps.cli.validate_plot import plot

        assert isinstance(answer, TrainingValidated)
        plot(answer, out.plot_path)
    answer.checked()
