"""`shardwise plan schema`: the JSON Schema of plan files."""

import json

import click

from shardwise.plans.schema import plan_schema


@click.command()
@click.option("--kind", default="train", show_default=True, metavar="train|serve")
def schema(kind: str) -> None:
    """The JSON Schema of plan files, for editors that check YAML."""
    click.echo(json.dumps(plan_schema(kind), indent=2))
