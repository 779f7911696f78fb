"""`shardwise plan train|serve|show|diff`: the group, and what its commands share."""

import click

from shardwise.apps.cli.plan_serve import serve
from shardwise.apps.cli.plan_show import diff, show
from shardwise.apps.cli.plan_train import train


@click.group()
def plan() -> None:
    """Choose and price a plan, or price one from a file."""


plan.add_command(train)
plan.add_command(serve)
plan.add_command(show)
plan.add_command(diff)
