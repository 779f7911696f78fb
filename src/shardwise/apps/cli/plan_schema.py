"""`shardwise plan schema`: the JSON Schema of plan files."""

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.pages import print_page


@click.command(cls=AnswerCommand)
@click.option("--kind", default="train", show_default=True, metavar="train|serve")
def schema(kind: str) -> None:
    """The JSON Schema of plan files, for editors that check YAML."""
    from shardwise.commands.tables.plan_schema import PlanSchemaRequest

    print_page(PlanSchemaRequest(kind).answer().page())
