"""`shardwise roofline`: one matmul on one chip, its bytes, intensity, times and critical batch."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer


@command(
    "roofline",
    "csv_path plot_path show_detail as_json",
    plot_path="The roofline with the product on it, PNG or SVG.",
)
def roofline(out: Outputs) -> None:
    """Whether a matmul is bound by math or by memory, on one chip."""
    from shardwise.commands.tables.roofline import RooflineRequest

    asked = request_of(RooflineRequest)
    inputs = {"on": asked.on, "matmul": asked.dims(), "dtype": asked.dtype}
    inputs |= {"weights": asked.weights, "set": asked.sets, "level": asked.level}
    inputs |= {"batch": asked.batch} if asked.batch else {}
    inputs |= {"measured": asked.measured} if asked.measured is not None else {}
    answer = asked.answer()
    show_answer(answer, out, inputs)
    if out.plot_path:
        from shardwise.apps.cli.roofline_chart import draw_roofline

        draw_roofline(answer, out.plot_path)
