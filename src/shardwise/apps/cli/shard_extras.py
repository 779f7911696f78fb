"""What `shardwise shard` adds on request: the backward pass, JAX source, and a real run."""

from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.output import table
from shardwise.errors import BadRequest
from shardwise.sharding import Einsum, Mesh, parse_sizes
from shardwise.sharding.backward import backward_boxes
from shardwise.units import format_bytes
from shardwise.workflows.shard import Sharding

if TYPE_CHECKING:
    from shardwise.workflows.shard_run import ShardRun

Extras = dict[str, Any]


def backward_text(options: dict[str, Any], einsum: Einsum | None) -> str:
    """The derived steps of forward and backward; of a listing with `;` where there is no einsum."""
    expression = options["expression"]
    if einsum is not None:
        product = " * ".join(map(str, einsum.operands))
        expression = product if einsum.free else f"{product} -> {einsum.result}"
    return backward_boxes(
        expression,
        Mesh.parse(options["mesh"]),
        storage=options["store"],
        inputs=options["input"],
        sizes=parse_sizes(options["dims"]),
    )


def extras(options: dict[str, Any], answer: Sharding) -> Extras:
    """Only what was asked for, to go into the result."""
    if (options["run"] or options["to"]) and not answer.best.program.steps:
        flag = "--run" if options["run"] else "--to"
        raise BadRequest(f"{flag}: '{answer.einsum}' takes no step, so there is nothing to run")
    found: Extras = {}
    if options["backward"]:
        found["backward"] = backward_text(options, answer.einsum).splitlines()
    # What compiles programs is imported only where it is asked for, for the sake of --help.
    if options["to"]:
        from shardwise.workflows.shard_run import to_source

        found["source"] = to_source(answer.best.program, options["to"])
    if options["run"]:
        from shardwise.workflows.shard_run import run_program

        found["run"] = _run_result(run_program(answer.best.program))
    return found


def render_extras(found: Extras) -> None:
    """The extras for a person, each after an empty line."""
    if "backward" in found:
        click.echo("\nForward and backward derived from the layouts as written, which fix where")
        click.echo("parameters are stored; the strategy above is free to choose another way.")
        click.echo("\n".join(found["backward"]))
    if "run" in found:
        click.echo()
        _render_run(found["run"])


def _run_result(run: "ShardRun") -> dict[str, Any]:
    names = ("predicted", "shard_map", "jit")
    return {
        "programs": {
            style: {
                "equal": ran.equal,
                "error": ran.error,
                "gradient_error": ran.gradient_error,
            }
            for style, ran in run.runs.items()
        },
        "as_predicted": run.as_predicted,
        "collectives": [
            {
                "kind": row.kind,
                "axes": list(row.axes),
                **{n: dict(zip(("count", "bytes"), getattr(row, n), strict=True)) for n in names},
            }
            for row in run.rows
        ],
        "notes": list(run.notes),
    }


def _render_run(run: dict[str, Any]) -> None:
    rows = []
    for row in run["collectives"]:
        cells = [row[name] for name in ("predicted", "shard_map", "jit")]
        counted = [
            f"{c['count']} x, {format_bytes(c['bytes'])}" if c["count"] else "-" for c in cells
        ]
        rows.append([row["kind"], ",".join(row["axes"]), *counted])
    title = "Compiled and run on virtual CPU devices: collectives and their bytes V"
    table(("kind", "axes", "predicted", "shard_map", "jit"), rows, title=title, left=2)
    for style, ran in run["programs"].items():
        word = "equals" if ran["equal"] else "DIFFERS FROM"
        gradient = ran["gradient_error"]
        also = "" if gradient is None else f", gradients by {gradient:.1e}"
        click.echo(f"  {style} {word} the dense product: off by {ran['error']:.1e}{also}")
    for note in run["notes"]:
        click.echo(f"  {note}")


def _counted(cell: dict[str, Any]) -> str:
    return f"{cell['count']} x, {format_bytes(cell['bytes'])}" if cell["count"] else "-"
