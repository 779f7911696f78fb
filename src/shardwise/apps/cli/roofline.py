"""`shardwise roofline`: one matmul on one chip, its bytes, intensity, times and critical batch."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer
from shardwise.errors import BadRequest


@command(
    "roofline",
    "csv_path plot_path show_detail as_json",
    plot_path="The roofline with the product on it, PNG or SVG.",
)
def roofline(out: Outputs) -> None:
    """What bounds a matmul on one chip, math or memory, and how good a measured time is."""
    from shardwise.commands.tables.roofline import MatmulAnswer, RooflineRequest

    asked = request_of(RooflineRequest)
    if out.plot_path and asked.matmul is None:
        raise BadRequest("--plot draws a product; give --matmul, or leave it out")
    inputs = {"on": asked.on}
    inputs |= {"matmul": asked.dims()} if asked.matmul is not None else {}
    inputs |= {"dtype": asked.dtype, "weights": asked.weights, "set": asked.sets}
    inputs |= {"level": asked.level}
    for name in ("batch", "attention", "causal", "collective", "copy", "measured"):
        inputs |= {name: given} if (given := getattr(asked, name)) else {}
    answer = asked.answer()
    show_answer(answer, out, inputs)
    if out.plot_path and isinstance(answer, MatmulAnswer):
        from shardwise.apps.cli.roofline_chart import draw_roofline

        draw_roofline(answer, out.plot_path)
