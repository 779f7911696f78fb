"""`shardwise book list|figure`: the book's figures as data, and the published plans it audits."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, plot_option
from shardwise.apps.cli.output import csv_option, document, emit, json_option, table, write_csv
from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.book.figures import Figure, figure, figure_ids
from shardwise.plans.named import PREFIX, audit_about, audit_names
from shardwise.units import sig

_SHOWN = 16


@click.group()
def book() -> None:
    """The book's figures as data, and the published plans that it audits."""


@book.command("list")
@click.option("--chapter", help="Only this chapter, such as 5.")
@json_option
def list_(chapter: str | None, as_json: bool) -> None:
    """Ids that `book figure` and `plan show audit:NAME` take."""
    entries = [e for e in _entries() if chapter in (None, e["chapter"])]
    if not entries:
        chapters = ", ".join(dict.fromkeys(e["chapter"] for e in _entries()))
        raise click.UsageError(f"chapter '{chapter}' has nothing here; there are {chapters}")
    doc = document(inputs={"chapter": chapter} if chapter else {}, result={"entries": entries})
    emit(doc, as_json, lambda: _render_list(entries))


def _entries() -> list[dict[str, str]]:
    figures = [
        {"id": f.id, "chapter": f.chapter, "kind": "figure", "about": f.title, "source": f.source}
        for f in map(figure, figure_ids())
    ]
    audits = [
        {
            "id": f"{PREFIX}{name}",
            "chapter": "12",
            "kind": "plan",
            "about": audit_about(name).partition(":")[0],
            "source": audit_about(name),
        }
        for name in audit_names()
    ]
    return [*figures, *audits]


def _render_list(entries: list[dict[str, str]]) -> None:
    table(
        ["id", "chapter", "kind", "what it is"],
        [[e["id"], e["chapter"], e["kind"], e["about"]] for e in entries],
        left=4,
    )
    click.echo("Show one with: shardwise book figure ID, or shardwise plan show audit:NAME")


@book.command("figure")
@click.argument("figure_id", metavar="ID")
@csv_option
@plot_option("Also draw the figure (.png or .svg).")
@json_option
def figure_(figure_id: str, csv_path: Path | None, plot_path: Path | None, as_json: bool) -> None:
    """The data series of one figure, with what the text reads off it."""
    check_outputs()
    found = figure(figure_id)
    if csv_path:
        rows = [[s.label, x, y] for s in found.series for x, y in zip(s.x, s.y, strict=True)]
        write_csv(csv_path, ["series", _axis(found, "x"), _axis(found, "y")], rows)
    if plot_path:
        _plot(found, plot_path)
    doc = document(inputs={"id": figure_id}, result=_result(found))
    emit(doc, as_json, lambda: _render(found))


def _axis(found: Figure, which: str) -> str:
    label, unit = getattr(found, f"{which}_label"), getattr(found, f"{which}_unit")
    return f"{label} [{unit}]" if unit else label


def _result(found: Figure) -> dict[str, Any]:
    return {
        "id": found.id,
        "chapter": found.chapter,
        "title": found.title,
        "source": found.source,
        "x": {"label": found.x_label, "unit": found.x_unit, "log": "x" in found.log},
        "y": {"label": found.y_label, "unit": found.y_unit, "log": "y" in found.log},
        "series": [{"label": s.label, "x": list(s.x), "y": list(s.y)} for s in found.series],
        "readings": dict(found.readings),
    }


def _render(found: Figure) -> None:
    """Title, readings, and so many points of every curve as a terminal takes."""
    click.echo(f"{found.title} ({found.source})")
    if found.readings:
        click.echo()
        table(["reading", "value"], [[k, sig(v, 4)] for k, v in found.readings.items()])
    for series in found.series:
        step = -(-len(series.x) // _SHOWN)
        points = list(zip(series.x, series.y, strict=True))[::step]
        click.echo()
        table(
            [_axis(found, "x"), _axis(found, "y")],
            [[sig(x), sig(y, 4)] for x, y in points],
            title=series.label + (f" (every {step}th point)" if step > 1 else ""),
            left=0,
        )


def _plot(found: Figure, path: Path) -> None:
    drawing = new_figure(8, 5)
    axes = drawing.add_subplot()
    for series in found.series:
        drawn = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y > 0]
        if drawn:
            axes.plot(*zip(*drawn, strict=True), label=series.label, marker="." * (len(drawn) < 20))
    axes.set_xlabel(_axis(found, "x"))
    axes.set_ylabel(_axis(found, "y"))
    if "x" in found.log:
        axes.set_xscale("log")
    if "y" in found.log:
        axes.set_yscale("log")
    axes.set_title(f"{found.title}\n{found.source}", fontsize=10)
    axes.legend(fontsize=8)
    save_figure(drawing, path)
