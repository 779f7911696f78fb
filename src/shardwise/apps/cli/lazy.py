"""A group of commands whose modules are imported when they run, so that `--help` stays fast."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import click

from shardwise.apps.cli.streams import InterruptedRunError, reader_left


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for.

    `lazy` says of each command what it is for. Its module is `home` with the command's name behind
    it, or with the name that `elsewhere` has. The command has its own name there, or `NAME_`.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, str],
        home: str,
        elsewhere: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.lazy, self.home, self.elsewhere = lazy, home, elsewhere or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse what is no text before it reaches a message, which could not be printed."""
        from shardwise.boundary.arguments import check_arguments

        check_arguments(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module = importlib.import_module(self.home + self.elsewhere.get(cmd_name, cmd_name))
        return getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        return _outside_click(super().make_context, *args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        return _outside_click(super().invoke, ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in self.lazy:
            from shardwise.errors import unknown

            raise unknown("command", args[0], self.lazy, f"see `{ctx.command_path} --help`")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lazy.items()))


def _outside_click(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call it; a pipe that is closed and Ctrl-C end as we say, not as click does."""
    try:
        return function(*args, **options)
    except BrokenPipeError as error:
        raise reader_left(error) from None
    except KeyboardInterrupt:
        raise InterruptedRunError from None
