"""`shardwise model list|show|diff`: parameters, FLOPs, cache and design decisions of models."""

from collections.abc import Mapping
from typing import Any

import click

from shardwise.apps.cli.command import AnswerGroup
from shardwise.apps.cli.completion import models
from shardwise.apps.cli.files import check_outputs
from shardwise.apps.cli.options import as_option, parameters, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options

seq_option = click.option("--seq", default="8192", show_default=True, help="Tokens of a sequence.")
kv_option = click.option("--kv", default="bf16", show_default=True, help="Of the KV cache.")


@click.group(cls=AnswerGroup)
def model() -> None:
    """Parameters, FLOPs, KV cache and design decisions of a model."""


@model.command("list")
@csv_option
@json_option
def list_models(**options: Any) -> None:
    """Every model of the zoo."""
    from shardwise.commands.tables.model import ModelListRequest

    check_outputs()
    show_answer(ModelListRequest().answer(), options, inputs={})


@model.command()
@click.argument("name", shell_complete=models)
@as_option
@seq_option
@kv_option
@sections_options("detail")
@json_option
def show(name: Any, **_: Any) -> None:
    """One model, by zoo name, by its config.json, or by a directory with one."""
    options = parameters()
    from shardwise.commands.tables.model import ModelRequest

    request = request_of(ModelRequest, options)
    inputs = {"name": name, **_asked(options, request.context())}
    show_answer(request.answer(), options, inputs=inputs)


@model.command()
@click.argument("names", shell_complete=models, nargs=-1, required=True)
@as_option
@seq_option
@kv_option
@csv_option
@sections_options("detail")
@json_option
def diff(names: Any, **_: Any) -> None:
    """The design decisions of two or more models side by side; * marks what differs."""
    options = parameters()
    from shardwise.commands.tables.model import ModelDiffRequest

    check_outputs()
    request = request_of(ModelDiffRequest, options)
    inputs = {"names": names, **_asked(options, request.context())}
    show_answer(request.answer(), options, inputs=inputs)


def _asked(options: Mapping[str, Any], context: int) -> dict[str, Any]:
    """What else was asked, for a document's `inputs`."""
    family = {"as": options["as_"]} if options["as_"] else {}
    return {**family, "seq": context, "kv": options["kv"]}
