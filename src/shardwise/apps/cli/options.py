"""Options that several commands share, and how they become values."""

from pathlib import Path
from typing import Any

import click

from shardwise.workflows.inputs import Hardware


def hardware_options(constants: str | None = "vendor"):
    """--constants, --hw, --set and --price of commands that price; None lets the plan say."""

    def decorate(command):
        for option in (
            click.option("--price", "prices", multiple=True, metavar="CHIP=USD"),
            click.option("--set", "sets", multiple=True, metavar="PATH=VALUE"),
            click.option("--hw", "hw_files", multiple=True, type=click.Path(), help="Chip file."),
            click.option(
                "--constants",
                default=constants,
                show_default=constants is not None,
                metavar="vendor|book",
                help="Whose numbers for the chips.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def hardware_of(options: dict[str, Any]) -> Hardware:
    """The hardware settings of `hardware_options`."""
    return Hardware(
        constants=options["constants"],
        files=options["hw_files"],
        overrides=options["sets"],
        prices=options["prices"],
    )


def given(options: dict[str, Any]) -> dict[str, Any]:
    """What was asked, for a document's `inputs`: unset options are left out."""
    return {
        k: str(v) if isinstance(v, Path) else v
        for k, v in options.items()
        if v not in (None, (), False)
    }
