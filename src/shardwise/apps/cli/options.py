"""Options that several commands share, and how they become values."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from shardwise.apps.cli.option_fields import click_option, fields_of, request_options
from shardwise.errors import BadRequest

Made = TypeVar("Made")


as_option = request_options("plan train", "as_")


def hardware_options(
    constants: str | None = "vendor", *, sets: bool = True, price: bool = True
) -> Callable[[Any], Any]:
    """--constants, --hw, --set, --price, --provider and --spot of commands that read chips.

    With `constants` None the plan says which; without `sets` no number can be changed, without
    `price` the command has no dollars to change.
    """
    rows = fields_of("plan train")
    names = ("hw_files", *["sets"] * sets, *["prices", "provider", "spot"] * price)
    said = {} if constants else {"help": f"{rows['constants'].about} Default: the plan's."}

    def decorate(command: Any) -> Any:
        command = request_options("plan train", *names)(command)
        shown = {"default": constants, "show_default": constants is not None}
        return click_option("constants", rows["constants"], **shown, **said)(command)

    return decorate


def key_options(command: Any) -> Any:
    """--api-key and --key-in-clear of commands that ask a server."""
    key = click.option(
        "--api-key",
        metavar="KEY",
        help="Shown to the endpoint.  [OPENAI_API_KEY at OPENAI_BASE_URL, SHARDWISE_API_KEY at "
        "SHARDWISE_BASE_URL]",
    )
    clear = click.option("--key-in-clear", is_flag=True, help="Even unencrypted to another host.")
    return key(clear(command))


def parameters() -> Mapping[str, Any]:
    """All that the running command was given, or takes where it was not, by parameter."""
    return click.get_current_context().params


def request_of(request: Callable[..., Made], options: Mapping[str, Any]) -> Made:
    """The request that the command's parameters make: each of its fields is one, by name."""
    return request(**{field.name: options[field.name] for field in fields(request)})  # type: ignore[arg-type]


def on_command_line(name: str) -> bool:
    """Whether the running command was given this option or argument, by its parameter's name."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def refuse(names: Iterable[str], why: str) -> None:
    """Raise BadRequest for the first of these options that was given, as it would do nothing."""
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    for name in names:
        if on_command_line(name):
            raise BadRequest(f"{flags[name]} {why}")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked, for a document's `inputs`: unset options are left out, and keys."""
    return {
        k: str(v) if isinstance(v, Path) else v
        for k, v in options.items()
        if v not in (None, (), False) and k != "api_key"
    }
