"""Types of options whose values are the names of rows, which are imported when one is given."""

import importlib
from typing import Any

import click
from click.shell_completion import CompletionItem


class Named(click.ParamType):
    """A name out of those that a module lists: `Named("policy", "package.module:NAMES")`, of which
    the first word stands in `--help`.

    `--help` does not import the module, so that it stays fast; a wrong name is answered with all of
    them, and a shell completes them.
    """

    def __init__(self, name: str, place: str) -> None:
        self.name, self.place = name, place

    @property
    def names(self) -> tuple[str, ...]:
        """The names."""
        module, _, attribute = self.place.partition(":")
        return tuple(getattr(importlib.import_module(module), attribute))

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The name; click's error lists the others."""
        return click.Choice(self.names).convert(value, param, ctx)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """The names that begin so."""
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]
