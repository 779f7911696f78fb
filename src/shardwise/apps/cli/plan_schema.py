"""`shardwise plan schema`: the JSON Schema of plan files."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import print_page


@command("plan schema")
def schema(_: Outputs) -> None:
    """The JSON Schema of plan files, for editors that check YAML."""
    from shardwise.commands.tables.plan_schema import PlanSchemaRequest

    print_page(request_of(PlanSchemaRequest).answer().page())
