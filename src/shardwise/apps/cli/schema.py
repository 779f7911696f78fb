"""`shardwise schema`: what a command's JSON document holds, as a JSON Schema."""

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.pages import print_page


@click.command(cls=AnswerCommand)
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
def schema(command: tuple[str, ...]) -> None:
    """The JSON Schema of what COMMAND prints with --json, such as book figure; or all commands."""
    from shardwise.commands.tables.schema import SchemaRequest

    print_page(SchemaRequest(command).answer().page())
