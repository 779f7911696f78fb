"""--plot and --perfetto of a training plan: its pipeline as a Gantt chart and as a trace."""

from typing import Any

from shardwise.apps.cli.files import file_option, plot_option


def timeline_options(command):
    """The two options; `write_timeline` does what they ask."""
    trace = file_option(
        "--perfetto",
        "trace_path",
        endings=(".json", ".json.gz"),
        help="Pipeline trace for ui.perfetto.dev (.json.gz).",
    )
    return plot_option("Pipeline chart, PNG or SVG.")(trace(command))


def write_timeline(answer: Any, options: dict[str, Any]) -> None:
    """Write the timeline of a priced plan as a picture, as a trace, or both.

    Raises BadRequest for a serving plan and for a file that cannot be written.
    """
    plot, trace = options["plot_path"], options["trace_path"]
    if plot is None and trace is None:
        return
    from shardwise.commands.pricing.plans import plan_timeline  # slow to load, for --help

    line = plan_timeline(answer)
    if plot is not None:
        from shardwise.apps.cli.pipeline_chart import draw_pipeline

        draw_pipeline(line, plot)
    if trace is not None:
        from shardwise.planner.price.trace import write_trace

        write_trace(line, trace)
