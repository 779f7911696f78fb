"""`shardwise hw list|show|diff`: the catalogue with a source for every number."""

from typing import TYPE_CHECKING

import click

from shardwise.apps.cli.command import AnswerGroup, command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer

if TYPE_CHECKING:
    from shardwise.commands.base.inputs import CatalogueWords


@click.group(cls=AnswerGroup)
def hw() -> None:
    """Chips, networks, slices and prices of the catalogue."""


@command("hw list", "as_json csv_path", hw)
def list_chips(out: Outputs) -> None:
    """One line per chip."""
    from shardwise.commands.tables.hw import ChipListRequest

    asked = request_of(ChipListRequest)
    show_answer(asked.answer(), out, _inputs(asked))


@command("hw show", "show_detail as_json", hw)
def show(out: Outputs) -> None:
    """Every number of CHIP with its source, and the value of the book if it differs."""
    from shardwise.commands.tables.hw import ChipRequest

    asked = request_of(ChipRequest)
    inputs = {"chip": asked.chip, **_inputs(asked), "set": asked.sets}
    show_answer(asked.answer(), out, inputs)


@command("hw diff", "show_detail as_json csv_path", hw)
def diff(out: Outputs) -> None:
    """FIRST and SECOND side by side, with the ratio SECOND / FIRST."""
    from shardwise.commands.tables.hw import ChipDiffRequest

    asked = request_of(ChipDiffRequest)
    show_answer(
        asked.answer(), out, {"first": asked.first, "second": asked.second, **_inputs(asked)}
    )


def _inputs(asked: "CatalogueWords") -> dict[str, object]:
    return {"constants": asked.constants, "hw": asked.hw_files}
