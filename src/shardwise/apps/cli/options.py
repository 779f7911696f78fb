"""Options that several commands share, and how they become values."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from shardwise.errors import BadRequest

Made = TypeVar("Made")


as_option = click.option(
    "--as", "as_", metavar="FAMILY", help="Class or model type to read an unknown config.json as."
)


def hardware_options(
    constants: str | None = "vendor", *, sets: bool = True, price: bool = True
) -> Callable[[Any], Any]:
    """--constants, --hw, --set, --price, --provider and --spot of commands that read chips.

    With `constants` None the plan says which; without `sets` no number can be changed, without
    `price` the command has no dollars to change.
    """
    options = [
        click.option(
            "--constants",
            default=constants,
            show_default=constants is not None,
            metavar="vendor|book",
            help="Whose numbers for the chips." + (" Default: the plan's." * (not constants)),
        ),
        click.option(
            "--hw",
            "hw_files",
            multiple=True,
            type=click.Path(),
            metavar="FILE",
            help="TOML or YAML file that adds or overrides a chip; may be repeated.",
        ),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="PATH=VALUE",
            help="Override a number, such as chip.hbm_bandwidth=3e12; may be repeated.",
        ),
        click.option(
            "--price",
            "prices",
            multiple=True,
            metavar="CHIP=USD",
            help="Dollars per chip-hour, such as h100=2.5; for the chip that is priced.",
        ),
        click.option(
            "--provider",
            help="Whose price to take, such as aws, gcp or runpod.  [default: that of the chip's "
            "file, which every answer names: gcp for TPUs, runpod for most GPUs]",
        ),
        click.option("--spot", is_flag=True, help="Prices of the spot market."),
    ]

    def decorate(command: Any) -> Any:
        for option in reversed(options[: 2 + sets + 3 * price]):
            command = option(command)
        return command

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
