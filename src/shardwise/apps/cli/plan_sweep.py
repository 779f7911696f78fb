"""`shardwise plan sweep`: the same training over slices, batches and lengths; what it is worth."""

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, show_answer
from shardwise.apps.cli.plan_train import next_lines


@command(
    "plan sweep",
    "plan_path plot_path csv_path as_json",
    plan_path="Plan file: the plan of the objective, within --days.",
    plot_path="PNG or SVG.",
)
def sweep(out: Outputs) -> None:
    """Plan every slice, batch and length; show scaling, the cost-speed front and what is cheapest.

    `eff` is tokens/s per chip, relative to the smallest slice of the series. `added` is the speed
    that the chips added since the row above bring (100% is perfect scaling). `*` marks rows that no
    other row beats in both speed and cost. For a bare chip, the sizes double. Several bare chips
    with --days, or with --chips N, are compared, one row each: the cheapest slice that meets the
    deadline, of whole boxes or cube-like shapes and not only powers of two; the program that runs
    the plan; dollars with the range over providers, and the date of each price.
    """
    from shardwise.commands.plan_train.sweep import SweepRequest
    from shardwise.errors import NoFeasiblePlan
    from shardwise.plans import save_plan

    watch = progress_line("planning", "rows")
    asked = request_of(SweepRequest)
    answer = asked.answer(watch)
    chosen, path = answer.chosen, out.plan_path
    if chosen is None or chosen.answer is None:
        more = ()
    else:
        more = next_lines(asked, path, chosen.answer, f" ({chosen.piece})")
        if path:
            save_plan(chosen.answer.plan, path)
    show_answer(answer, out, given(asked, out), more=more)
    if out.plot_path:
        from shardwise.apps.cli.sweep_chart import plot_sweep

        plot_sweep(answer.jobs, answer.name, out.plot_path, answer.days)
    if path and not more:
        raise NoFeasiblePlan(f"no row keeps the deadline, so {path} was not written")
