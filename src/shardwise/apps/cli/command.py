"""A command whose `--help` lists options in groups."""

from collections.abc import Callable
from typing import Any

import click

from shardwise.apps.cli.completion import complete
from shardwise.apps.cli.files import check_outputs
from shardwise.apps.cli.option_fields import GROUPS, click_options, row_of
from shardwise.apps.cli.options import request_of
from shardwise.apps.cli.outputs import Outputs
from shardwise.apps.cli.pages import how_much_options
from shardwise.errors import BadRequest, shown


class AnswerCommand(click.Command):
    """A command; one that has an answer also takes -q, -v and --brief."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if any("--json" in option.opts for option in self.params):
            self.params += how_much_options()
        for option in self.params:
            if isinstance(option, click.Option) and not option.help:
                option.help = row_of(option).sentence
            if isinstance(option, click.Option):
                complete(option, row_of(option).offers)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; an option that takes one value and was given two is refused."""
        if not ctx.resilient_parsing:
            self._refuse_second_values(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_second_values(self, ctx: click.Context, args: list[str]) -> None:
        """click takes the last of several values, without a word."""
        parser = self.make_parser(ctx)
        single = [option for option in self.get_params(ctx) if _takes_one(option)]
        for option in single:
            _collect_all(parser, option)
        given, _, _ = parser.parse_args(args=list(args))
        for option in single:
            first, *others = dict.fromkeys(given.get(option.name, [None]))
            if others:
                said = f"{shown(first)} and {shown(others[0])}"
                raise BadRequest(f"{option.opts[0]} is given {said}; leave one of them out")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by group, and those of every command at the end."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None and isinstance(option, click.Option):
                rows.setdefault(row_of(option).group, []).append(record)
        for group in (*GROUPS, ""):
            if group in rows:
                with formatter.section(group or "Options"):
                    formatter.write_dl(rows[group])


def _takes_one(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not (option.multiple or option.count)


def _collect_all(parser: Any, option: Any) -> None:
    """Parse an option into a list of all that it is given; of a flag, of how it is spelt."""
    if not option.is_flag:
        parser.add_option(option, option.opts, option.name, action="append", nargs=option.nargs)
        return
    for spelt in filter(None, (option.opts, option.secondary_opts)):
        parser.add_option(option, spelt, option.name, action="append_const", const=spelt[0])


class AnswerGroup(click.Group):
    """A group of such commands."""

    command_class = AnswerCommand


def command(
    path: str, outputs: str = "", group: click.Group | None = None, **about: str
) -> Callable[[Callable[[Outputs], None]], click.Command]:
    """A command, of the words that call it. Its options are the fields of its request, and the
    `outputs`, names of fields of `Outputs`, of which `about` says something else than usual."""

    def decorate(function: Callable[[Outputs], None]) -> click.Command:
        made = AnswerCommand(
            path.split()[-1],
            callback=lambda **_: _run(function),
            params=click_options(path, outputs, about),
            help=function.__doc__,
        )
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def _run(function: Callable[[Outputs], None]) -> None:
    check_outputs()
    function(request_of(Outputs))
