"""`shardwise shard`: arrays and computations in the book's notation.

One array: what each device of a mesh holds of it. A product, a chain or a reshard: the cheapest way
to compute it.
"""

from itertools import islice
from math import inf
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.options import hardware_options, refuse
from shardwise.apps.cli.output import csv_option, document, emit, json_option, table, write_csv
from shardwise.apps.cli.shard_extras import backward_text, extras, render_extras
from shardwise.apps.cli.shard_products import HEADER_BYTES, HEADER_TIME, render, strategy_rows
from shardwise.errors import BadRequest, unknown
from shardwise.sharding import (
    Layout,
    Mesh,
    Sizes,
    block,
    bytes_per_device,
    bytes_total,
    copies,
    global_shape,
    local_shape,
    parse_sizes,
    shards,
)
from shardwise.sharding.notation import read_product
from shardwise.units import format_bytes, parse_bytes
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.shard import shard_expression, shard_result

MOST_ROWS = 32
MOST_LISTED = 65_536
Rows = list[tuple[tuple[int, ...], tuple[slice, ...]]]


@click.command()
@click.argument("expression")
@click.option("--dims", required=True, metavar="I=SIZE,..", help="The size of every dim.")
@click.option("--mesh", required=True, metavar="X=4,Y=2", help="Axes and degrees.")
@click.option("--dtype", default="bf16", show_default=True, help="The arrays' dtype.")
@click.option("--on", metavar="SLICE", help="Rank by time on a slice such as v5e:4x4.")
@click.option("--out", metavar="free|LAYOUT", help="Wanted layout of the result, or any.")
@click.option("--free", multiple=True, metavar="ARRAY", help="Choose how this input is stored.")
@click.option("--max-hbm", help="Bytes per device to stay under, such as 300MB.")
@click.option("--top", type=int, metavar="N", help="Strategies to show [default: 5].")
@click.option("--backward", is_flag=True, help="Derive the backward pass, as the book's boxes.")
@click.option(
    "--store",
    multiple=True,
    metavar="LAYOUT",
    help="With --backward: how a gradient (dW[..]) or optimizer state (mW[..]) is stored.",
)
@click.option(
    "--input", multiple=True, metavar="ARRAY", help="With --backward: this array is no parameter."
)
@click.option("--draw", is_flag=True, help="Who holds what, as a map in the terminal.")
@plot_option("The map of one array as a figure, PNG or SVG.")
@file_option(
    "--animate",
    "animate_path",
    dash=True,
    help="The first collective hop by hop, as HTML; - for the terminal.",
)
@click.option("--to", type=click.Choice(("jax", "explicit")), help="Print a runnable program.")
@click.option("--run", is_flag=True, help="Compile and run the best on virtual CPU devices.")
@hardware_options()
@json_option
@csv_option
def shard(**options: Any) -> None:
    """What each device holds of an array, or the cheapest way to compute with sharded arrays.

    EXPRESSION is an array "A[I_X, J]", a product "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]" of two or
    more arrays (any einsum; leave out -> for a free result), or a reshard "A[I_XY] -> A[I_Y]".
    With --backward it may also be lines separated by ';', named functions among them.
    """
    check_outputs()
    if not options["backward"] and (options["store"] or options["input"]):
        raise BadRequest("--store and --input belong to --backward; add it")
    if options["backward"] and ";" in options["expression"]:
        refuse(_NOT_FOR_LISTINGS, "does nothing for lines separated by ';'")
        return _show_listing(options)
    on_stdout = options["draw"] or str(options["animate_path"]) == "-"
    if on_stdout and (options["as_json"] or options["to"]):
        raise BadRequest("--draw and --animate - print pictures; leave out --json and --to")
    operands, wanted = read_product(options["expression"])
    if len(operands) == 1 and wanted is None:
        rule = "does nothing for a single array; give a product, or a reshard with '->'"
        refuse(_FOR_PRODUCTS, rule)
        _show_array(options)
    else:
        _check_pictures(options)
        _show_product(options)
    return None


_CHIPS = ("constants", "hw_files", "sets", "prices")
_PICTURES = ("draw", "plot_path", "animate_path")
_FOR_PRODUCTS = (
    "on",
    "out",
    "free",
    "max_hbm",
    "top",
    "backward",
    "to",
    "run",
    *_CHIPS,
    "animate_path",
)
_NOT_FOR_LISTINGS = (
    "on",
    "out",
    "free",
    "max_hbm",
    "top",
    "to",
    "run",
    "csv_path",
    *_CHIPS,
    *_PICTURES,
)


def _show_listing(options: dict[str, Any]) -> None:
    """Lines of a longer computation: only their backward pass is derived."""
    text = backward_text(options, None)
    inputs = {"expression": options["expression"], "mesh": options["mesh"]}
    doc = document(inputs=inputs, result={"backward": text.splitlines()})
    emit(doc, options["as_json"], lambda: click.echo(text))


def _check_pictures(options: dict[str, Any]) -> None:
    """What --plot and --animate cannot show of a product, before it is searched."""
    operands, wanted = read_product(options["expression"])
    arrays = len(operands) + (wanted != operands[0])
    if options["plot_path"] is not None and arrays > 1:
        rule = "--plot shows one array; give one of them alone, or use --draw"
        raise BadRequest(f"the answer has {arrays} arrays; {rule}")
    if options["animate_path"] is not None and not options["on"]:
        raise BadRequest("--animate shows links; say of which slice with --on SLICE")


def _show_product(options: dict[str, Any]) -> None:
    changed = any(options[n] for n in ("hw_files", "sets", "prices"))
    if not options["on"] and (changed or options["constants"] != "vendor"):
        raise BadRequest(
            "--constants, --hw, --set and --price change chips; say which with --on SLICE"
        )
    if options["to"] and not options["as_json"] and (options["run"] or options["backward"]):
        raise BadRequest("--to prints a program and nothing else; leave out --run and --backward")
    answer = shard_expression(
        options["expression"],
        dims=options["dims"],
        mesh=options["mesh"],
        on=options["on"] or "",
        dtype=options["dtype"],
        out=options["out"] or "",
        free_inputs=options["free"],
        max_hbm=parse_bytes(options["max_hbm"], "--max-hbm") if options["max_hbm"] else inf,
        top=5 if options["top"] is None else options["top"],
        hardware=Hardware(
            constants=options["constants"],
            files=options["hw_files"],
            overrides=options["sets"],
            prices=options["prices"],
        ),
    )
    added = extras(options, answer)
    result = shard_result(answer) | added
    if options["csv_path"] is not None:
        header = HEADER_TIME if answer.ranking else HEADER_BYTES
        write_csv(options["csv_path"], header, strategy_rows(result))
    doc = document(
        inputs={k: v for k, v in options.items() if v is not None and k not in _NOT_INPUTS},
        resolved={
            "expression": {"value": str(answer.einsum), "origin": "computed"},
            "max_bytes_per_device": {
                "value": result["max_bytes_per_device"],
                "origin": "--max-hbm"
                if options["max_hbm"]
                else "the chip"
                if options["on"]
                else "",
            },
        },
        result=result,
        warnings=answer.notes,
    )
    if options["to"] and not options["as_json"]:
        # Nothing else, so that the program can be piped.
        click.echo(added["source"])
        return

    def show() -> None:
        render(answer, result)
        render_extras(added)

    emit(doc, options["as_json"], show)
    if any(options[name] for name in _PICTURES):
        from shardwise.apps.cli.shard_pictures import picture_arrays, picture_movement

        arrays = (*answer.best.inputs, answer.best.result)
        picture_arrays(options, tuple(dict.fromkeys(arrays)), answer.sizes, answer.mesh)
        picture_movement(options, answer)


_NOT_INPUTS = ("as_json", "csv_path", *_PICTURES)


def _show_array(options: dict[str, Any]) -> None:
    array, dtype = options["expression"], options["dtype"]
    layout, mesh = Layout.parse(array), Mesh.parse(options["mesh"])
    sizes = parse_sizes(options["dims"])
    for name in sizes:
        if name not in layout.letters:
            raise unknown("dim", name, layout.letters, f"the array is '{layout}'")
    result = _result(layout, sizes, mesh, dtype)
    rows = [(at, block(layout, sizes, mesh, at)) for at in islice(mesh.devices(), MOST_LISTED)]
    devices = [{"at": at, "block": [(s.start, s.stop) for s in held]} for at, held in rows]
    cut = f"the first {MOST_LISTED:,} of {mesh.size:,} devices are listed"
    doc = document(
        inputs={"array": array, "dims": sizes, "mesh": dict(mesh), "dtype": dtype},
        result=result | {"devices": devices},
        warnings=(cut,) if mesh.size > MOST_LISTED else (),
    )
    if options["csv_path"] is not None:
        write_csv(options["csv_path"], [*mesh, *layout.letters], _cells(rows))
    emit(doc, options["as_json"], lambda: _render(layout, mesh, dtype, result, rows))
    if any(options[name] for name in _PICTURES):
        from shardwise.apps.cli.shard_pictures import picture_arrays

        picture_arrays(options, (layout,), sizes, mesh)


def _result(layout: Layout, sizes: Sizes, mesh: Mesh, dtype: str) -> dict[str, Any]:
    name = layout.name or str(layout)
    return {
        "array": str(layout),
        "mesh": dict(mesh),
        "spec": layout.spec(),
        "unreduced": layout.unreduced,
        "global_shapes": {name: global_shape(layout, sizes)},
        "local_shapes": {name: local_shape(layout, sizes, mesh)},
        "blocks": shards(layout, mesh),
        "copies": copies(layout, mesh),
        "bytes_per_device": bytes_per_device(layout, sizes, mesh, dtype),
        "bytes_total": bytes_total(layout, sizes, mesh, dtype),
    }


def _cells(rows: Rows) -> list[list[str]]:
    return [[*map(str, at), *(f"{s.start}:{s.stop}" for s in held)] for at, held in rows]


def _exact(size: float) -> str:
    exact = f"{size:,.1f}".removesuffix(".0") + " B"
    return f"{exact} ({format_bytes(size)})" if size >= 1000 else exact


def _render(layout: Layout, mesh: Mesh, dtype: str, result: dict[str, Any], rows: Rows) -> None:
    name = layout.name or str(layout)
    each, total = result["bytes_per_device"], result["bytes_total"]
    facts = [
        ("global shape", f"{dtype}{list(result['global_shapes'][name])}"),
        ("local shape", f"{dtype}{list(result['local_shapes'][name])}"),
        ("blocks x copies", f"{result['blocks']} x {result['copies']}"),
        ("bytes per device", _exact(each)),
        ("bytes in total", _exact(total)),
    ]
    if layout.unreduced:
        facts.append(("partial sums over", ", ".join(layout.unreduced)))
    table(("", "value"), facts, title=f"{layout} on mesh {mesh} ({mesh.size:,} devices)", left=2)
    click.echo()
    table([*mesh, *layout.letters], _cells(rows[:MOST_ROWS]), title="Who holds what")
    if mesh.size > MOST_ROWS:
        click.echo(f"  and {mesh.size - MOST_ROWS:,} more devices (--json or --csv lists them)")
