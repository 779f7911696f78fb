"""`shardwise plan schema`: the JSON Schema of plan files."""

import click

from shardwise.boundary import to_json
from shardwise.plans.schema import plan_schema


@click.command()
@click.option("--kind", default="train", show_default=True, metavar="train|serve")
def schema(kind: str) -> None:
    """The JSON Schema of plan files, for editors that check YAML."""
    click.echo(to_json(plan_schema(kind)))
