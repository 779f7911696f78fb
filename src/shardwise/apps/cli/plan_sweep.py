"""`shardwise plan sweep`: the same training over slices, batches and lengths; what it is worth."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, plot_option
from shardwise.apps.cli.numbers import Number
from shardwise.apps.cli.options import given, hardware_of, hardware_options
from shardwise.apps.cli.output import (
    csv_option,
    document,
    emit,
    json_option,
    table,
    write_csv,
)
from shardwise.apps.cli.plan_train_options import search_of, search_options
from shardwise.apps.cli.progress import progress_line
from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.models.describe import unpriced
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_seconds, format_usd, parse_count, sig
from shardwise.workflows.inputs import parse_batch, parse_total, whole
from shardwise.workflows.sweep import Point, slices_between, sweep, sweep_result


@click.command("sweep")
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@click.option(
    "--on",
    "targets",
    required=True,
    multiple=True,
    help="Slice, or a bare chip for its slices within --chips; may be repeated.",
)
@click.option("--chips", default="1..65536", show_default=True, metavar="LOW..HIGH", help="Chips.")
@click.option("--batch", "batches", required=True, multiple=True, help="As in plan train; repeat.")
@click.option("--seq", "lengths", required=True, multiple=True, help="Tokens; may be repeated.")
@search_options
@click.option("--tokens", help="Length of the run, such as 15T: adds days and dollars.")
@click.option("--days", type=Number(above=0, most=1e6), help="Deadline of --tokens.")
@plot_option("PNG or SVG.")
@hardware_options()
@csv_option
@json_option
def sweep_command(**options: Any) -> None:
    """Plan every slice, batch and length; show scaling, the cost-speed front and what is cheapest.

    `eff` is tokens/s per chip over that of the series' smallest slice, `added` the speed that the
    chips added since the row above bring (100% is perfect scaling), `*` marks rows that no other
    beats in both speed and cost.
    """
    if options["days"] and not options["tokens"]:
        raise click.UsageError("--days is a deadline for a run; say its length with --tokens")
    check_outputs()
    hardware = hardware_of(options)
    low, high = _range(options["chips"])
    lengths = [whole(parse_count(text, "--seq"), "--seq") for text in options["lengths"]]
    for batch in options["batches"]:
        for length in lengths:
            parse_batch(batch, length)
    found = [p for t in options["targets"] for p in slices_between(t, low, high, hardware)]
    pieces = list({str(p): p for p in found}.values())
    points = sweep(
        options["model"],
        pieces,
        batches=options["batches"],
        lengths=lengths,
        tokens=parse_total(options["tokens"], "--tokens") if options["tokens"] else None,
        hardware=hardware,
        progress=progress_line("planning"),
        **search_of(options),
    )
    result = sweep_result(points, options["days"])
    doc = document(
        inputs=given(options),
        result=result,
        warnings=unpriced(load_model(options["model"])),
        provenance={p.chip.id: p.chip.efficiency.source for p in pieces},
    )
    if options["csv_path"]:
        _write_csv(options["csv_path"], result["points"])
    if options["plot_path"]:
        from shardwise.apps.cli.sweep_chart import plot_sweep

        plot_sweep(points, load_model(options["model"]).name, options["plot_path"])
    emit(doc, options["as_json"], lambda: _render(points, result))


def _range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    if not dots:
        raise BadRequest(f"--chips '{text}' is no range; write it like --chips 256..16384")
    found = parse_count(low, "--chips"), parse_count(high, "--chips")
    if found[0] > found[1]:
        raise BadRequest(f"--chips '{text}' ends below its start; write it like 256..16384")
    if found[1] > MOST_CHIPS:
        raise BadRequest(f"--chips '{text}' goes beyond {MOST_CHIPS:,.0f} chips; end below it")
    return found


MOST_CHIPS = 1e6  # no job is larger, and the search of one would take minutes


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    names = ["slice", "chips", "batch", "sequence_length", "batch_tokens", "mesh", "microbatches"]
    names += ["remat", "lower_s", "expected_s", "upper_s", "tokens_per_second", "mfu", "bound_by"]
    names += ["peak_bytes_per_chip", "efficiency", "marginal", "days", "usd", "on_front", "miss"]
    flat = []
    for row in rows:
        step = row.get("step_seconds", {})
        flat.append(
            row
            | {f"{name}_s": seconds for name, seconds in step.items()}
            | {"mesh": mesh_text(row["mesh"]) if "mesh" in row else ""}
        )
    write_csv(path, names, [[row.get(name, "") for name in names] for row in flat])


def _render(points: tuple[Point, ...], result: dict[str, Any]) -> None:
    run = any(p.days is not None for p in points)
    header = ["slice", "mesh", "batch", "seq", "expected", "tokens/s", "MFU", "eff", "added"]
    header += ["bound by", *(["days", "cost"] if run else []), "front"]
    title = "predicted (expected), one search a row"
    table(header, [_cells(p, run) for p in points], title=title, left=2)
    for point in points:
        if point.miss:
            click.echo(f"  {point.piece}, batch {point.batch}: {point.miss}")
    for line in result["verdicts"]:
        click.echo(f"\n{line}")


def _cells(point: Point, run: bool) -> list[str]:
    start = [str(point.piece)]
    asked = [point.batch, str(point.sequence_length)]
    if point.answer is None:
        return [*start, "no plan", *asked, *[""] * (9 if run else 7)]
    answer = point.answer
    return [
        *start,
        mesh_text(answer.plan.mesh),
        *asked,
        format_seconds(answer.step_seconds["expected"]),
        format_count(answer.tokens_per_second),
        f"{answer.mfu:.1%}",
        "" if point.efficiency is None else f"{point.efficiency:.0%}",
        "" if point.marginal is None else f"{point.marginal:.0%}",
        answer.estimate.bound_by(),
        *([sig(point.days or 0.0), _usd(point)] if run else []),
        "*" if point.on_front else "",
    ]


def _usd(point: Point) -> str:
    return "unknown" if point.usd is None else format_usd(point.usd)
