"""`shardwise simulate`: a serving plan under a trace or a made load, request by request."""

from math import inf

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, show_answer
from shardwise.errors import BadRequest


@command(
    "simulate",
    "plot_path steps_path perfetto_until show_detail csv_path as_json",
    plot_path="Latencies and queues as a PNG or SVG.",
    steps_path="Every step as a trace file for ui.perfetto.dev.",
)
def simulate(out: Outputs) -> None:
    """Run a load through the replicas of a serving plan with the scheduler that would run them.

    A run measures 2000 requests once the servers are full; bursts (--cv), --lengths, --tile, and
    plans without a load make 1000. The answer says whether this one run meets the targets. A rate
    holds (--find-rate) if 95 % of its requests meet the targets, also in slow runs, with 5 % of
    every target to spare.

    --set scheduling.policy=interleaved changes a field of the plan first; --csv has a row for each
    request.
    """
    from shardwise.commands.plan_serve.simulate import SimulateRequest

    until, steps = _until(out), out.steps_path
    asked = request_of(SimulateRequest)
    watch = progress_line("simulating", "requests")
    answer = asked.answer(watch, keep_steps=steps is not None)
    show_answer(answer, out, given(asked, out))
    if out.plot_path:
        from shardwise.apps.cli.simulate_chart import plot_simulation

        plot_simulation(answer.simulated, out.plot_path)
    if steps:
        from shardwise.planner.price.trace import write_events
        from shardwise.planner.simulate.step_trace import step_events

        write_events(step_events(answer.simulated.outcome, until), steps, "--perfetto")
    answer.verify()


def _until(out: Outputs) -> float:
    """The end of the trace file in seconds."""
    if out.perfetto_until is None:
        return inf
    if out.steps_path is None:
        raise BadRequest("--perfetto-until is the end of a trace file; name it with --perfetto")
    from shardwise.units import parse_seconds

    return parse_seconds(out.perfetto_until, "--perfetto-until")
