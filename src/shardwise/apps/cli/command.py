"""A command: its options in groups, the request that they make, and checks of files to write.

A command that writes has its files as fields of `Outputs`, and `check_outputs` looks at them before
it does anything: places, endings, packages, the command's own inputs, and files that exist.
"""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from shardwise.apps.cli.completion import complete
from shardwise.apps.cli.options import (
    GROUPS,
    PICTURE,
    OutputFile,
    OutputFolder,
    Outputs,
    click_options,
    is_marked,
    row_of,
)
from shardwise.apps.cli.output import how_much_options
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
    `outputs`, names of fields of `Outputs`; `about` replaces the usual sentence of some."""

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


def check_outputs() -> None:
    """Raise BadRequest or MissingPart, before anything is computed, for an output of the running
    command that could not or should not be written."""
    wanted = list(_outputs())
    if not wanted:
        return
    from shardwise.boundary import check_folder, check_output  # slow to load, for --help

    read = list(_inputs())
    for i, (flag, path, kind) in enumerate(wanted):
        if isinstance(kind, OutputFolder):
            check_folder(path, flag, force=is_marked("force"), inputs=read)
            continue
        check_output(path, flag, force=is_marked("force"), inputs=read, endings=kind.endings)
        if kind.endings == PICTURE:
            from shardwise.apps.cli.pictures import need_matplotlib

            need_matplotlib()
        for other, same, _ in wanted[:i]:
            if path.absolute() == same.absolute():
                raise BadRequest(f"{other} and {flag} both name '{path}'; name two files")


def _outputs() -> Iterator[tuple[str, Path, OutputFile | OutputFolder]]:
    """The flag, path and kind of every output that was asked for."""
    context = click.get_current_context()
    for option in context.command.params:
        path = context.params.get(option.name or "")
        kind = option.type
        if isinstance(kind, OutputFile | OutputFolder) and path is not None and str(path) != "-":
            yield option.opts[0], path, kind


def _inputs() -> Iterator[Path]:
    """Every file that a word of the command line names, outputs apart: as it stands, as the config
    of a model's folder, or before a colon (`--lengths FILE:CATEGORY`)."""
    from shardwise.boundary import is_file

    context = click.get_current_context()
    for option in context.command.params:
        if isinstance(option.type, OutputFile | OutputFolder):
            continue
        value = context.params.get(option.name or "")
        for word in value if isinstance(value, tuple) else (value,):
            if isinstance(word, str | Path) and str(word):
                named = str(word)
                for path in (named, f"{named}/config.json", named.rpartition(":")[0]):
                    if path and is_file(Path(path)):
                        yield Path(path)


Made = TypeVar("Made")


def request_of(request: Callable[..., Made], options: Mapping[str, object] | None = None) -> Made:
    """What the running command's parameters make, or `options`: each field that is one, by name."""
    found = click.get_current_context().params if options is None else options
    given = {one.name: found[one.name] for one in fields(request) if one.name in found}  # type: ignore[arg-type]
    return request(**given)


def by_name(asked: Any, *without: str) -> dict[str, object]:
    """The fields of a request."""
    return {f.name: getattr(asked, f.name) for f in fields(asked) if f.name not in without}


def given(*asked: Any, without: Iterable[str] = ()) -> dict[str, object]:
    """What was asked, for a document's `inputs`: fields of a request and of outputs. Unset ones are
    left out, and keys."""
    found = [one for value in asked for one in by_name(value).items()]
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in found
        if value not in (None, (), False) and name not in ("api_key", *without)
    }


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


@contextmanager
def ended_at_once() -> Iterator[None]:
    """SIGTERM ends the process here, and what it started with it: by itself it would not end the
    first process of a container. A server that listens has a handler of its own."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
