"""--plot and --perfetto of a training plan: its pipeline as a Gantt chart and as a trace."""

from typing import Any

from shardwise.apps.cli.options import Outputs
from shardwise.commands.pricing.plans import plan_timeline


def write_timeline(answer: Any, out: Outputs) -> None:
    """Write the timeline of a priced plan as a picture, as a trace, or both.

    Raises BadRequest for a serving plan and for a file that cannot be written.
    """
    plot, trace = out.plot_path, out.trace_path
    line = plan_timeline(answer)
    if plot is not None:
        from shardwise.apps.cli.pipeline_chart import draw_pipeline

        draw_pipeline(line, plot)
    if trace is not None:
        from shardwise.planner.price.trace import write_trace

        write_trace(line, trace)
