"""`shardwise plan train|serve|sweep|show|diff|schema`: the group, and what its commands share."""

import click

from shardwise.apps.cli.plan_diff import diff
from shardwise.apps.cli.plan_schema import schema
from shardwise.apps.cli.plan_serve import serve
from shardwise.apps.cli.plan_show import show
from shardwise.apps.cli.plan_sweep import sweep_command
from shardwise.apps.cli.plan_train import train


@click.group()
def plan() -> None:
    """Choose and price a plan, or price one from a file."""


plan.add_command(train)
plan.add_command(serve)
plan.add_command(sweep_command)
plan.add_command(show)
plan.add_command(diff)
plan.add_command(schema)
