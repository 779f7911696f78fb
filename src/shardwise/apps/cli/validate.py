"""`shardwise validate`: predicted against measured step times of published training runs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, plot_option
from shardwise.apps.cli.options import given
from shardwise.apps.cli.output import (
    csv_option,
    document,
    emit,
    json_option,
    table,
    write_csv,
)
from shardwise.apps.cli.progress import progress_line
from shardwise.apps.cli.validate_tables import rank_text, share_text, signed_text, summaries_table
from shardwise.errors import BadRequest, ThresholdMissed, unknown
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.evidence.training.validate import Summary, Validation, validation_result
from shardwise.evidence.training.validate import validate as run_validation
from shardwise.units import format_seconds
from shardwise.workflows.inputs import parse_share

_WORST = 10


@click.command()
@click.argument(
    "path",
    metavar="[TABLE.csv]",
    required=False,
    type=click.Path(dir_okay=False, path_type=Path),
)
@click.option("--serving", is_flag=True, help="Serving measurements: time per output token, TTFT.")
@click.option("--source", multiple=True, metavar="S", help="Only rows of this source; repeatable.")
@click.option("--grade", metavar="A|B", help="Only rows of this grade.")
@click.option("--no-fit", is_flag=True, help="Chip rates alone: no efficiency, no fitted constant.")
@click.option(
    "--check",
    metavar="MEDIAN",
    help="Exit with 4 where the median absolute error is larger, such as 10%.",
)
@click.option("--verbose", is_flag=True, help="Name every row that is left out, and the worst.")
@plot_option("Predicted against measured as a PNG or SVG.")
@csv_option
@json_option
def validate(path: Path | None, **options: Any) -> None:
    """Price every run of a table of measurements on its own plan and compare step times.

    Without a table: the published runs that come with shardwise, each with its citation.
    """
    check_outputs()
    limit = _limit(options["check"]) if options["check"] else None
    if options.pop("serving"):
        from shardwise.apps.cli.validate_serving import validate_serving

        validate_serving(path, limit, options)
        return
    path = path or PUBLISHED
    read = read_table(path)
    rows = _chosen(read.rows, options["source"], options["grade"])
    found = run_validation(
        rows,
        folder=path.parent,
        efficiency="roofline" if options["no_fit"] else "fitted",
        progress=progress_line("validating", "runs"),
    )
    if not found.rows:
        reason = found.left_out[0].reason if found.left_out else "it is empty"
        raise BadRequest(f"no row of '{path}' can be priced; the first: {reason}")
    result = validation_result(found)
    doc = document(
        inputs={"path": str(path), **given(options)}, result=result, warnings=read.warnings
    )
    if options["csv_path"] is not None:
        write_csv(options["csv_path"], *_csv(result["rows"]))
    if options["plot_path"] is not None:
        from shardwise.apps.cli.validate_plot import plot

        plot(found, options["plot_path"])
    emit(doc, options["as_json"], lambda: _render(found, result, options["verbose"]))
    _check(found.summary, limit)


def _limit(text: str) -> float:
    """A median error; 1 alone would pass everything and means 1 %."""
    limit = parse_share(text, "--check")
    if limit == 1 and not text.endswith("%"):
        raise BadRequest(f"--check '{text}' would allow errors of 100%; write 1% or 100%")
    return limit


def _chosen(
    rows: Sequence[Mapping[str, str]], sources: Sequence[str], grade: str | None
) -> list[Mapping[str, str]]:
    """The rows of the sources and the grade asked for. BadRequest where there are none."""
    held = dict.fromkeys(row.get("source", "") for row in rows)
    for source in sources:
        if source not in held:
            raise unknown("source", source, held, "a run without --source shows all")
    grades = dict.fromkeys(row.get("grade") or "" for row in rows)
    if grade is not None and grade not in grades:
        raise unknown("grade", grade, grades)
    return [
        row
        for row in rows
        if (not sources or row.get("source", "") in sources) and grade in (None, row.get("grade"))
    ]


def _check(summary: Summary, limit: float | None) -> None:
    median = summary.median_abs_error
    if limit is not None and median is not None and median > limit:
        raise ThresholdMissed(
            f"the median absolute error is {median:.1%} over {summary.n} runs; "
            f"--check asks for at most {limit:.1%}"
        )


def _csv(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """One line per run; a range as two columns."""
    header = [name for name in rows[0] if name not in ("interval", "mesh", "inferred")]
    flat = [[row[name] for name in header] for row in rows]
    ranges = [row["interval"] or ("", "") for row in rows]
    lines = [[*line, *range_] for line, range_ in zip(flat, ranges, strict=True)]
    return [*header, "interval_low", "interval_high"], lines


def _render(found: Validation, result: Mapping[str, Any], verbose: bool) -> None:
    constants = "fitted constants" if found.efficiency == "fitted" else "chip rates alone, no fit"
    click.echo(f"{len(found.rows)} runs priced with {constants}, {len(found.left_out)} left out")
    keys: dict[str, Callable[..., str]] = {
        "source": lambda r: r.run.source,
        "chip": lambda r: r.run.chip,
        "bound by": lambda r: r.bound_by,
        "software": lambda r: r.run.stack,
    }
    for title, key in keys.items():
        click.echo()
        summaries_table(title, found.by(key), "rank of MFU")
    click.echo()
    summaries_table("runs that are", found.gates(), "rank of MFU")
    click.echo()
    _orders(result)
    click.echo()
    _checks(result)
    if verbose:
        _details(found)
    elif found.left_out:
        click.echo(f"\nleft out: {len(found.left_out)} rows (--verbose names each)")


def _checks(result: Mapping[str, Any]) -> None:
    """Ranges and memory."""
    coverage, memory = result["coverage"], result["memory"]
    rows = [
        ["runs inside their 80 % range", share_text(coverage["in_sample"])],
        ["the same, range from other groups only", share_text(coverage["held_out_by_group"])],
    ]
    if memory["n"]:
        what = f"peak memory, median |error| of {memory['n']} runs"
        rows.append([what, share_text(memory["median_abs_error"])])
    unfit = f"{len(result['would_not_fit'])} of {len(result['rows'])}"
    rows.append(["runs whose counted memory exceeds usable HBM", unfit])
    table(["check", ""], rows)


def _orders(result: Mapping[str, Any]) -> None:
    """How well plans of one model are ordered, and all plans of its source beside a plain guess."""
    rows = []
    for source, every in result["against_size"].items():
        for one in (o for o in result["within_model"] if o["source"] == source):
            ours = rank_text(one["rank_correlation"])
            rows.append([f"MFU of {one['model']}", str(one["n"]), ours, ""])
        ranks = [rank_text(every["predicted"]), rank_text(every["one_over_parameters"])]
        rows.append([f"tokens/s per chip of {source}", str(every["n"]), *ranks])
    if rows:
        table(["order of plans by", "runs", "rank", "rank of 1/parameters"], rows)


def _details(found: Validation) -> None:
    worst = sorted(found.rows, key=lambda r: -abs(r.log_ratio))[:_WORST]
    click.echo()
    rows = [
        [
            r.run.id,
            format_seconds(r.predicted),
            format_seconds(r.measured),
            signed_text(r.error),
            r.bound_by,
        ]
        for r in worst
    ]
    table(["worst", "predicted", "measured", "error", "bound by"], rows)
    for row in found.left_out:
        click.echo(f"left out: {row.id}: {row.reason}")
