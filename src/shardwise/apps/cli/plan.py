"""`shardwise plan train|serve|sweep|show|diff|schema`: a group whose commands load when called."""

import click

from shardwise.apps.cli.lazy import LazyGroup

_HERE = "shardwise.apps.cli.plan_"
COMMANDS = {
    "train": (f"{_HERE}train", "train", "The simplest training plan as fast as any, and why."),
    "serve": (f"{_HERE}serve", "serve", "The cheapest servers that hold a load."),
    "sweep": (f"{_HERE}sweep", "sweep", "Every slice, batch and length; what scaling is worth."),
    "show": (f"{_HERE}show", "show", "Price the plan in a file; the book's rules beside it."),
    "diff": (f"{_HERE}diff", "diff", "What changes between two plans, and what it does."),
    "schema": (f"{_HERE}schema", "schema", "The JSON Schema of plan files."),
}


@click.command(cls=LazyGroup, lazy=COMMANDS)
def plan() -> None:
    """Choose and price a plan, or price one from a file."""
