"""`shardwise validate --serving`: predicted against measured times of published serving runs."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.options import given
from shardwise.apps.cli.output import document, emit, table, write_csv
from shardwise.apps.cli.progress import progress_line
from shardwise.apps.cli.validate_tables import signed_text, summaries_table
from shardwise.errors import BadRequest, ThresholdMissed, unknown
from shardwise.evidence.serving.runs import PUBLISHED_SERVING, ServingTable, read_serving
from shardwise.evidence.serving.validate import (
    ServingValidation,
    serving_result,
    tpot_summary,
    ttft_summary,
    worst,
)
from shardwise.evidence.serving.validate import validate_serving as run_validation
from shardwise.units import format_seconds

_WORST = 10


def validate_serving(path: Path | None, limit: float | None, options: dict[str, Any]) -> None:
    """Run the command; `limit` bounds the median error of TPOT of the runs that gate."""
    for name, flag in (("grade", "--grade"), ("plot_path", "--plot")):
        if options[name]:
            raise BadRequest(f"{flag} cannot take effect with --serving; leave it out")
    runs = _chosen(read_serving(path or PUBLISHED_SERVING), options["source"])
    found = run_validation(
        runs,
        efficiency="roofline" if options["no_fit"] else "fitted",
        progress=progress_line("validating", "runs"),
    )
    result = serving_result(found)
    inputs = {"path": str(path or PUBLISHED_SERVING), "serving": True, **given(options)}
    doc = document(inputs=inputs, result=result)
    if options["csv_path"] is not None:
        rows = result["rows"]
        header = [name for name in rows[0] if name != "interval"]
        lines = [[*(r[n] for n in header), *(r["interval"] or ("", ""))] for r in rows]
        write_csv(options["csv_path"], [*header, "interval_low", "interval_high"], lines)
    emit(doc, options["as_json"], lambda: _render(found, options["verbose"]))
    median = tpot_summary(found.gating).median_abs_error
    if limit is not None and median is not None and median > limit:
        raise ThresholdMissed(
            f"the median absolute error of TPOT is {median:.1%} over {len(found.gating)} runs; "
            f"--check asks for at most {limit:.1%}"
        )


def _chosen(runs: ServingTable, sources: tuple[str, ...]) -> ServingTable:
    """The runs of the sources asked for. BadRequest where there are none."""
    if not runs.runs:
        reason = next(iter(runs.left_out), "it is empty")
        raise BadRequest(f"no row of the table can be priced; the first: {reason}")
    held = dict.fromkeys(run.source for run in runs.runs)
    for source in sources:
        if source not in held:
            raise unknown("source", source, held, "a run without --source shows all")
    kept = tuple(r for r in runs.runs if not sources or r.source in sources)
    return ServingTable(rows=runs.rows, runs=kept, left_out=runs.left_out)


def _render(found: ServingValidation, verbose: bool) -> None:
    constants = "fitted constants" if found.efficiency == "fitted" else "chip rates alone, no fit"
    click.echo(
        f"{len(found.rows)} runs of {found.table.rows} rows priced with {constants}; "
        f"{len(found.gating)} are of the newest release of their engine, for its model and chip"
    )
    click.echo("\nTime per output token; throughput is concurrency / TPOT")
    summaries_table("newest releases", {"all": tpot_summary(found.gating)}, "rank")
    keys = {
        "source": lambda r: r.run.source,
        "chip": lambda r: r.run.chip,
        "model": lambda r: r.run.model,
        "engine": lambda r: r.run.family,
    }
    for title, key in keys.items():
        click.echo()
        summaries_table(title, found.by(key), "rank")
    if found.coverage is not None:
        click.echo(f"\n{found.coverage:.0%} of them inside their 80 % range")
    click.echo("\nTime to the first token")
    summaries_table("newest releases", {"all": ttft_summary(found.gating)}, "rank")
    if verbose:
        click.echo()
        summaries_table("release", found.by(lambda r: r.run.engine, gates=False), "rank")
        _details(found)
    elif found.table.left_out:
        number = sum(found.table.left_out.values())
        click.echo(f"\nleft out: {number:,} rows (--verbose says why)")


def _details(found: ServingValidation) -> None:
    rows = [
        [r.run.id, format_seconds(r.tpot), format_seconds(r.run.tpot), signed_text(r.error)]
        for r in worst(found.gating, _WORST)
    ]
    click.echo()
    table(["worst", "predicted", "measured", "error"], rows)
    for reason, number in sorted(found.table.left_out.items(), key=lambda item: -item[1]):
        click.echo(f"left out: {number:,} rows: {reason}")
