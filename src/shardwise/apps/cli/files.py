"""Options that name files to write, with the one `--force`, and their check before the work.

Every command that writes has its files as fields of `Outputs`, and `check_outputs` looks at them
before it does anything: places, endings, packages, the command's own inputs, and files that exist.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from shardwise.apps.cli.option_fields import is_marked
from shardwise.apps.cli.outputs import PICTURE, OutputFile, OutputFolder
from shardwise.errors import BadRequest


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
