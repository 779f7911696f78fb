"""`shardwise hw list|show|diff`: the catalogue with a source for every number."""

from collections.abc import Mapping
from typing import Any

import click

from shardwise.apps.cli.command import AnswerGroup
from shardwise.apps.cli.completion import chips
from shardwise.apps.cli.files import check_outputs
from shardwise.apps.cli.options import hardware_options, parameters, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options


@click.group(cls=AnswerGroup)
def hw() -> None:
    """Chips, networks, slices and prices of the catalogue."""


@hw.command("list")
@hardware_options(sets=False, price=False)
@json_option
@csv_option
def list_chips(**options: Any) -> None:
    """One line per chip."""
    from shardwise.commands.tables.hw import ChipListRequest

    check_outputs()
    show_answer(request_of(ChipListRequest, options).answer(), options, inputs=_inputs(options))


@hw.command()
@click.argument("chip", shell_complete=chips)
@hardware_options()
@sections_options("detail")
@json_option
def show(chip: Any, sets: Any, **_: Any) -> None:
    """Every number of CHIP with its source, and the other constants where they differ."""
    options = parameters()
    from shardwise.commands.tables.hw import ChipRequest

    inputs = {"chip": chip, **_inputs(options), "set": sets}
    show_answer(request_of(ChipRequest, options).answer(), options, inputs=inputs)


@hw.command()
@click.argument("first", shell_complete=chips)
@click.argument("second", shell_complete=chips)
@hardware_options(sets=False, price=False)
@sections_options("detail")
@json_option
@csv_option
def diff(**options: Any) -> None:
    """FIRST and SECOND side by side, with the ratio SECOND / FIRST."""
    from shardwise.commands.tables.hw import ChipDiffRequest

    check_outputs()
    inputs = {**{name: options[name] for name in ("first", "second")}, **_inputs(options)}
    show_answer(request_of(ChipDiffRequest, options).answer(), options, inputs=inputs)


def _inputs(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"constants": options["constants"], "hw": list(map(str, options["hw_files"]))}
