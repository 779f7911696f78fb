"""`shardwise schema`: what a command's JSON document holds, as a JSON Schema."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import print_page


@command("schema")
def schema(_: Outputs) -> None:
    """The JSON Schema of what COMMAND prints with --json, such as book figure; or all commands."""
    from shardwise.commands.tables.schema import SchemaRequest

    print_page(request_of(SchemaRequest).answer().page())
