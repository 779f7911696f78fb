"""Options that name files to write, with the one `--force`, and their check before the work.

Every command that writes declares its files with `file_option` or `folder_option`, and calls
`check_outputs` before it does anything: places, endings, packages, the command's own inputs, and
files that exist.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from shardwise.errors import BadRequest

PICTURE = (".png", ".svg")
_FORCE = f"{__name__}.force"


class OutputFile(click.Path):
    """A file that the command writes; `endings` are those that say a format."""

    def __init__(self, endings: tuple[str, ...] = (), *, dash: bool = False) -> None:
        super().__init__(dir_okay=False, path_type=Path, allow_dash=dash)
        self.endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: Any) -> Any:
        """The path; raises BadRequest for - where it is no file."""
        if str(value) == "-" and not self.allow_dash:
            flag = param.opts[0] if param else "the file"
            raise BadRequest(
                f"{flag} is '-'; it takes the name of a file, as standard output has the answer"
            )
        return super().convert(value, param, ctx)


class OutputFolder(click.Path):
    """A folder of reports that the command writes."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)


def file_option(
    *names: str, endings: tuple[str, ...] = (), dash: bool = False, **choices: Any
) -> Callable[[Any], Any]:
    """A file to write, and --force. With `dash`, - is no file."""
    return _with_force(click.option(*names, type=OutputFile(endings, dash=dash), **choices))


def folder_option(*names: str, **choices: Any) -> Callable[[Any], Any]:
    """A folder of reports to write, and --force."""
    return _with_force(click.option(*names, type=OutputFolder(), **choices))


def plot_option(help_text: str) -> Callable[[Any], Any]:
    """--plot, a picture."""
    return file_option("--plot", "plot_path", endings=PICTURE, help=help_text)


def check_outputs(*inputs: Path | str | None) -> None:
    """Raise BadRequest or MissingPart, before anything is computed, for an output of the running
    command that could not or should not be written; `inputs` are files read beside those that are
    declared as paths."""
    wanted = list(_outputs())
    if not wanted:
        return
    from shardwise.boundary import check_folder, check_output  # slow to load, for --help

    read = [*(Path(given) for given in inputs if given is not None), *_inputs()]
    for i, (flag, path, kind) in enumerate(wanted):
        if isinstance(kind, OutputFolder):
            check_folder(path, flag, force=forced(), inputs=read)
            continue
        check_output(path, flag, force=forced(), inputs=read, endings=kind.endings)
        if kind.endings == PICTURE:
            from shardwise.apps.cli.pictures import need_matplotlib

            need_matplotlib()
        for other, same, _ in wanted[:i]:
            if path.absolute() == same.absolute():
                raise BadRequest(f"{other} and {flag} both name '{path}'; name two files")


def forced() -> bool:
    """Whether the running command was given --force."""
    return bool(click.get_current_context().meta.get(_FORCE))


def _with_force(option: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        declared = getattr(command, "__click_params__", ())
        if not any("--force" in p.opts for p in declared):
            command = click.option(
                "--force",
                is_flag=True,
                expose_value=False,
                callback=_remember,
                help="Overwrite files that exist.",
            )(command)
        return option(command)

    return decorate


def _remember(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_FORCE] = value


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
