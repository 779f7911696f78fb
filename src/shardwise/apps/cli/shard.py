"""`shardwise shard`: what each device of a mesh holds of one array in the book's notation."""

from itertools import islice
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.output import csv_option, document, emit, json_option, table, write_csv
from shardwise.errors import unknown
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
from shardwise.units import format_bytes

MOST_ROWS = 32
MOST_LISTED = 65_536
Rows = list[tuple[tuple[int, ...], tuple[slice, ...]]]


@click.command()
@click.argument("array")
@click.option("--dims", required=True, metavar="I=SIZE,..", help="The size of every dim.")
@click.option("--mesh", "mesh_text", required=True, metavar="X=4,Y=2", help="Axes and degrees.")
@click.option("--dtype", default="bf16", show_default=True, help="The array's dtype.")
@json_option
@csv_option
def shard(
    array: str, dims: str, mesh_text: str, dtype: str, as_json: bool, csv_path: Path | None
) -> None:
    """Local shape, bytes and blocks of ARRAY, such as "A[I_X, J]"; products are not accepted."""
    layout, mesh, sizes = Layout.parse(array), Mesh.parse(mesh_text), parse_sizes(dims)
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
    if csv_path is not None:
        write_csv(csv_path, [*mesh, *layout.letters], _cells(rows))
    emit(doc, as_json, lambda: _render(layout, mesh, dtype, result, rows))


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
