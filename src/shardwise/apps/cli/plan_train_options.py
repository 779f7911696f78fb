"""Options of `plan train` that other commands take too."""

from typing import Any

from shardwise.apps.cli.option_fields import click_option, fields_of, request_options

evidence_option = request_options("plan train", "evidence")
run_options = request_options(
    "plan train",
    "tokens",
    "mfu",
    "params",
    "straggler",
    "chip_mtbf",
    "checkpoint_time",
    "checkpoint_interval",
    "restart_time",
)
"""The options of a whole run; off unless given."""


def compile_options(about: str) -> Any:
    """The options of a second opinion by the compiler: what --compile does is each command's."""
    compile_ = click_option("compile", fields_of("plan train")["compile"], help=about)
    others = request_options("plan train", "timeout", "xla")
    return lambda command: compile_(others(command))
