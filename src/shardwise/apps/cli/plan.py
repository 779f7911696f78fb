"""`shardwise plan train|serve|sweep|show|diff|schema`: a group whose commands load when called."""

import click

from shardwise.apps.cli.lazy import LazyGroup

COMMANDS = {
    "train": "The simplest training plan as fast as any, and why.",
    "serve": "The cheapest servers that hold a load.",
    "sweep": "Every slice, batch and length; what scaling is worth.",
    "show": "Price the plan in a file; the book's rules beside it.",
    "diff": "What changes between two plans, and what it does.",
    "schema": "The JSON Schema of plan files.",
}


@click.command(cls=LazyGroup, lazy=COMMANDS, home=f"{__name__}_")
def plan() -> None:
    """Choose and price a plan, or price one from a file."""
