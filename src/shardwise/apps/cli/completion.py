"""What a shell is told after options and arguments that name models and chips."""

import click
from click.shell_completion import CompletionItem


def models(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """Names of the zoo that begin so."""
    from shardwise.models.zoo import zoo_names  # slow to load, for --help

    return [name for name in zoo_names() if name.startswith(typed)]


def chips(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """Chips of the catalogue that begin so, behind a count (`4*`) and other chips (`h100,`)."""
    from shardwise.hardware.catalogue import chip_ids  # slow to load, for --help

    start = max(typed.rfind(","), typed.rfind("*")) + 1
    return [typed[:start] + name for name in chip_ids() if name.startswith(typed[start:])]


OFFERED = {"models": models, "chips": chips}
"""What a field may offer."""


def complete(option: click.Parameter, offers: str) -> None:
    """Let a shell offer what may follow an option."""
    found = OFFERED.get(offers)
    if found is None:
        return

    def offered(ctx: click.Context, typed: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in found(ctx, option, typed)]

    option.shell_complete = offered  # type: ignore[method-assign]
