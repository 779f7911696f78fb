"""`shardwise shard`: arrays and computations in the book's notation."""

from dataclasses import replace
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.numbers import WHOLE, Word
from shardwise.apps.cli.options import hardware_options, refuse, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.errors import BadRequest


@click.command(cls=AnswerCommand)
@click.argument("expression")
@click.option("--dims", required=True, metavar="I=SIZE,..", help="The size of every dim.")
@click.option("--mesh", required=True, metavar="X=4,Y=2", help="Axes and degrees.")
@click.option("--dtype", default="bf16", show_default=True, help="The arrays' dtype.")
@click.option("--on", metavar="SLICE", help="Rank by time on a slice such as v5e:4x4.")
@click.option("--result", metavar="free|LAYOUT", help="Wanted layout of the result, or any.")
@click.option("--free", multiple=True, metavar="ARRAY", help="Choose how this input is stored.")
@click.option("--max-hbm", help="Bytes per device to stay under, such as 300MB.")
@click.option("--top", type=WHOLE, metavar="N", help="Strategies to show [default: 5].")
@click.option("--backward", is_flag=True, help="Derive the backward pass, as the book's boxes.")
@click.option(
    "--store",
    multiple=True,
    metavar="LAYOUT",
    help="With --backward: how a gradient (dW[..]) or optimizer state (mW[..]) is stored.",
)
@click.option(
    "--no-parameter",
    multiple=True,
    metavar="ARRAY",
    help="With --backward: this array is no parameter.",
)
@click.option("--draw", is_flag=True, help="Who holds what, as a map in the terminal.")
@plot_option("The map of one array as a figure, PNG or SVG.")
@file_option(
    "--animate",
    "animate_path",
    dash=True,
    help="The first collective hop by hop, as HTML; - for the terminal, or into --json.",
)
@click.option("--to", type=Word(("jax", "explicit")), help="Print a runnable program.")
@click.option("--run", is_flag=True, help="Compile and run the best on virtual CPU devices.")
@hardware_options()
@sections_options("detail")
@json_option
@csv_option
def shard(**options: Any) -> None:
    """What each device holds of an array, or the cheapest way to compute with sharded arrays.

    EXPRESSION is an array "A[I_X, J]", a product "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]" of two or
    more arrays (any einsum; leave out -> for a free result), or a reshard "A[I_XY] -> A[I_Y]".
    With --backward it may also be lines separated by ';', named functions among them.
    """
    from shardwise.commands.shard.command import ShardRequest

    check_outputs()
    request = request_of(ShardRequest, options)
    if request.is_listing:
        refuse(("csv_path", *_PICTURES), "does nothing for lines separated by ';'")
        inputs = {"expression": options["expression"], "mesh": options["mesh"]}
        show_answer(request.answer(), options, inputs=inputs)
        return
    animated = str(options["animate_path"]) == "-"
    if options["to"] and (options["draw"] or animated):
        raise BadRequest("--draw and --animate - print pictures; leave out --to")
    if options["as_json"] and options["draw"]:
        raise BadRequest("--draw prints a picture; leave out --json")
    (_show_array if request.is_array else _show_product)(request, options)


_PICTURES = ("draw", "plot_path", "animate_path")
_NOT_INPUTS = ("as_json", "csv_path", *_PICTURES)


def _show_array(request: Any, options: dict[str, Any]) -> None:
    rule = "does nothing for a single array; give a product, or a reshard with '->'"
    refuse(("animate_path",), rule)
    answer = request.answer()
    inputs = {"array": options["expression"], "dims": answer.sizes, "mesh": answer.mesh}
    show_answer(answer, options, inputs={**inputs, "dtype": options["dtype"]})
    if any(options[name] for name in _PICTURES):
        from shardwise.apps.cli.shard_views import picture_arrays

        picture_arrays(options, (answer.layout,), answer.sizes, answer.degrees)


def _show_product(request: Any, options: dict[str, Any]) -> None:
    _check_pictures(options)
    if options["to"] and not options["as_json"] and (options["run"] or options["backward"]):
        raise BadRequest("--to prints a program and nothing else; leave out --run and --backward")
    answer = request.answer()
    asked = {k: v for k, v in options.items() if v is not None and k not in _NOT_INPUTS}
    if options["as_json"] and str(options["animate_path"]) == "-":
        show_answer(replace(answer, animation=answer.movement()), options, inputs=asked)
        return
    show_answer(answer, options, inputs=asked)
    if any(options[name] for name in _PICTURES):
        from shardwise.apps.cli.shard_views import picture_arrays, picture_movement

        found = answer.found
        arrays = dict.fromkeys((*answer.best.inputs, answer.best.result))
        picture_arrays(options, tuple(arrays), found.sizes, found.mesh)
        picture_movement(options, found)


def _check_pictures(options: dict[str, Any]) -> None:
    """What --plot and --animate cannot show of a product, before it is searched."""
    from shardwise.sharding.notation import read_product  # slow to load, for --help

    operands, wanted = read_product(options["expression"])
    arrays = len(operands) + (wanted != operands[0])
    if options["plot_path"] is not None and arrays > 1:
        rule = "--plot shows one array; give one of them alone, or use --draw"
        raise BadRequest(f"the answer has {arrays} arrays; {rule}")
    if options["animate_path"] is not None and not options["on"]:
        raise BadRequest("--animate shows links; say of which slice with --on SLICE")
