"""What the command line alone is asked: which files it writes of an answer, how much it shows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from shardwise.boundary.options import option
from shardwise.errors import BadRequest

PICTURE = (".png", ".svg")
TRACE = (".json", ".json.gz")


class OutputFile(click.Path):
    """A file that the command writes; `endings` are those that say a format."""

    def __init__(self, endings: tuple[str, ...] = (), *, dash: bool = False) -> None:
        super().__init__(dir_okay=False, path_type=Path, allow_dash=dash)
        self.endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: Any) -> Any:
        """The path; raises BadRequest for - where it is no file."""
        if str(value) == "-" and not self.allow_dash:
            flag = param.opts[0] if param else "the file"
            raise BadRequest(
                f"{flag} is '-'; it takes the name of a file, as standard output has the answer"
            )
        return super().convert(value, param, ctx)


class OutputFolder(click.Path):
    """A folder of reports that the command writes."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Options beside a request's; what a command has no option for is None."""

    plan_path: Path | None = option(
        "Plan file.",
        kind="output",
        flag="-o",
        group="Files",
        meaning="the file to write: a plan, an export, or a hardware file",
    )
    file: Path | None = option(kind="output", flag="-o")
    out: Path | None = option(
        "Report folder.", kind="folder", group="Files", meaning="the folder to write"
    )
    plot_path: Path | None = option(
        kind="output", endings=PICTURE, group="Files", meaning="also draw a picture, PNG or SVG"
    )
    animate_path: Path | None = option(
        kind="output", dash=True, group="Files", meaning="draw a collective hop by hop"
    )
    graph: Path | None = option(
        kind="output",
        endings=(".svg", ".dot"),
        group="Files",
        meaning="draw the dearest ops of a step, and what waits for what",
    )
    html_path: Path | None = option(
        kind="output",
        endings=(".html",),
        group="Files",
        meaning="a page with the frames of what is shown",
    )
    trace_path: Path | None = option(
        "Pipeline trace for ui.perfetto.dev (.json.gz).",
        kind="output",
        endings=TRACE,
        flag="--perfetto",
        group="Files",
        meaning="write what happens when as a trace for ui.perfetto.dev",
    )
    steps_path: Path | None = option(kind="output", endings=TRACE, flag="--perfetto")
    perfetto_until: str | None = option(
        "The trace file ends after so much time, such as 60s.", group="Files"
    )
    csv_path: Path | None = option(
        "Also write the table to a CSV file.", kind="output", group="Files"
    )
    as_json: bool = option(
        "One JSON document on stdout.", default=False, kind="flag", flag="--json", group="Files"
    )
    draw: bool | None = option(
        "Who holds what, as a map in the terminal.",
        kind="flag",
        group="How much is said",
        meaning="a map in the terminal",
    )
    show_detail: bool | None = option(
        "Everything else that is known of the answer: tables, layouts, how it was searched.",
        kind="flag",
        flag="--detail",
        group="How much is said",
        meaning="everything else that is known of the answer",
    )
    show_why: bool | None = option(
        "Why this answer and not another.", kind="flag", flag="--why", group="How much is said"
    )
    show_book: bool | None = option(
        'What the rules of "How To Scale Your Model" say beside it.',
        kind="flag",
        flag="--book",
        group="How much is said",
    )
    show_stages: bool | None = option(
        "The op that `compile --stages` followed, from JAX to the schedule.",
        kind="flag",
        flag="--stages",
    )

    def sections(self) -> dict[str, bool | None]:
        """Whether each section of an answer is printed below its page."""
        names = ("detail", "why", "book", "stages")
        return {name: getattr(self, f"show_{name}") for name in names}
