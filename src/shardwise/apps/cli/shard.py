"""`shardwise shard`: arrays and computations in the book's notation."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardwise.apps.cli.command import by_name, command, refuse, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer
from shardwise.errors import BadRequest

if TYPE_CHECKING:
    from shardwise.commands.shard.command import ShardRequest


@command(
    "shard",
    "draw plot_path animate_path to show_detail as_json csv_path",
    plot_path="The map of one array as a figure, PNG or SVG.",
    animate_path="The first collective hop by hop, as HTML; - for the terminal, or into --json.",
)
def shard(out: Outputs) -> None:
    """What each device holds of an array, or the cheapest way to compute with sharded arrays.

    EXPRESSION is an array "A[I_X, J]", a product "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]" of two or
    more arrays (any einsum; leave out -> for a free result), or a reshard "A[I_XY] -> A[I_Y]".
    With --backward it may also be lines separated by ';', named functions among them.
    """
    from shardwise.commands.shard.command import ShardRequest

    asked = request_of(ShardRequest)
    if asked.is_listing:
        refuse(("csv_path", *_PICTURES), "does nothing for lines separated by ';'")
        show_answer(asked.answer(), out, {"expression": asked.expression, "mesh": asked.mesh})
        return
    if asked.to and (out.draw or str(out.animate_path) == "-"):
        raise BadRequest("--draw and --animate - print pictures; leave out --to")
    if out.as_json and out.draw:
        raise BadRequest("--draw prints a picture; leave out --json")
    (_show_array if asked.is_array else _show_product)(asked, out)


_PICTURES = ("draw", "plot_path", "animate_path")


def _show_array(asked: "ShardRequest", out: Outputs) -> None:
    rule = "does nothing for a single array; give a product, or a reshard with '->'"
    refuse(("animate_path",), rule)
    answer: Any = asked.answer()
    inputs = {"array": asked.expression, "dims": answer.sizes, "mesh": answer.mesh}
    show_answer(answer, out, {**inputs, "dtype": asked.dtype})
    if out.draw or out.plot_path:
        from shardwise.apps.cli.shard_views import picture_arrays

        picture_arrays(out, (answer.layout,), answer.sizes, answer.degrees)


def _show_product(asked: "ShardRequest", out: Outputs) -> None:
    _check_pictures(asked, out)
    if asked.to and not out.as_json and (asked.run or asked.backward):
        raise BadRequest("--to prints a program and nothing else; leave out --run and --backward")
    answer: Any = asked.answer()
    given = {name: value for name, value in by_name(asked).items() if value is not None}
    given |= {"show_detail": out.show_detail}
    if out.as_json and str(out.animate_path) == "-":
        show_answer(replace(answer, animation=answer.movement()), out, given)
        return
    show_answer(answer, out, given)
    if out.draw or out.plot_path or out.animate_path:
        from shardwise.apps.cli.shard_views import picture_arrays, picture_movement

        found = answer.found
        arrays = dict.fromkeys((*answer.best.inputs, answer.best.result))
        picture_arrays(out, tuple(arrays), found.sizes, found.mesh)
        picture_movement(out, found)


def _check_pictures(asked: "ShardRequest", out: Outputs) -> None:
    """What --plot and --animate cannot show of a product, before it is searched."""
    from shardwise.sharding.notation import read_product  # slow to load, for --help

    operands, wanted = read_product(asked.expression)
    arrays = len(operands) + (wanted != operands[0])
    if out.plot_path is not None and arrays > 1:
        rule = "--plot shows one array; give one of them alone, or use --draw"
        raise BadRequest(f"the answer has {arrays} arrays; {rule}")
    if out.animate_path is not None and not asked.on:
        raise BadRequest("--animate shows links; say of which slice with --on SLICE")
