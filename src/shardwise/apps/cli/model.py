"""`shardwise model list|show|diff`: parameters, FLOPs, cache and design decisions of models."""

from typing import TYPE_CHECKING

import click

from shardwise.apps.cli.command import AnswerGroup, command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer

if TYPE_CHECKING:
    from shardwise.commands.tables.model import ContextRequest


@click.group(cls=AnswerGroup)
def model() -> None:
    """Parameters, FLOPs, KV cache and design decisions of a model."""


@command("model list", "csv_path as_json", model)
def list_models(out: Outputs) -> None:
    """Every model of the zoo."""
    from shardwise.commands.tables.model import ModelListRequest

    show_answer(ModelListRequest().answer(), out, {})


@command("model show", "show_detail as_json", model)
def show(out: Outputs) -> None:
    """One model, by zoo name, by its config.json, or by a directory with one."""
    from shardwise.commands.tables.model import ModelRequest

    asked = request_of(ModelRequest)
    inputs = {"name": asked.name, **_context(asked)}
    show_answer(asked.answer(), out, inputs)


@command("model diff", "csv_path show_detail as_json", model)
def diff(out: Outputs) -> None:
    """The design decisions of two or more models side by side; * marks what differs."""
    from shardwise.commands.tables.model import ModelDiffRequest

    asked = request_of(ModelDiffRequest)
    inputs = {"names": asked.names, **_context(asked)}
    show_answer(asked.answer(), out, inputs)


def _context(asked: "ContextRequest") -> dict[str, object]:
    """What else was asked, for a document's `inputs`."""
    family = {"as": asked.as_} if asked.as_ else {}
    return {**family, "seq": asked.context(), "kv": asked.kv}
