"""A command whose `--help` lists options in groups."""

from typing import Any

import click

from shardwise.apps.cli.completion import complete
from shardwise.apps.cli.option_table import GROUPS, group_of
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
                option.help = _meaning(option)
            complete(option)

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
                rows.setdefault(group_of(option.opts), []).append(record)
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


def _meaning(option: click.Option) -> str:
    """What the table says of an option, as a sentence."""
    every = {name: said for options in GROUPS.values() for name, said in options.items()}
    said = next((every[name] for name in option.opts if name in every), "")
    return said and f"{said[0].upper()}{said[1:]}."


class AnswerGroup(click.Group):
    """A group of such commands."""

    command_class = AnswerCommand
