"""The one writer: aside, flushed to the disk, renamed; over a file that exists only with `--force`.

A reader sees the old file or the new one, whole, whatever happens in between.
"""

import csv
import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, ShardwiseError

Inputs = Iterable[Path | None]
_ASIDE = ".shardwise-"
"""How the names of files begin that are not yet whole; a run that is killed may leave one."""
_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""The disk's errors, not the request's."""


def check_output(
    path: Path | None,
    option: str,
    *,
    force: bool = False,
    inputs: Inputs = (),
    endings: tuple[str, ...] = (),
) -> None:
    """Raise BadRequest, before the work, for a file that could not or should not be written after
    it: an ending that says no format, a folder that is missing or closed, one of the command's own
    `inputs`, or a file that exists, without `force`."""
    if path is None:
        return
    if endings and not path.name.lower().endswith(endings):
        raise BadRequest(f"{option} '{path}' must end in {' or '.join(endings)}")
    try:
        if any(given is not None and _same(path, given) for given in inputs):
            raise BadRequest(f"{option} '{path}' is an input of the command; name another file")
        _check_place(path, option)
        if _stream(path) is not None or (path.exists() and not path.is_file()):
            return
        if path.is_file() and not force:
            raise BadRequest(
                f"{option} '{path}' exists; name another file, or overwrite it with --force"
            )
        _make_beside(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error, option) from None


def check_folder(
    path: Path | None, option: str, *, force: bool = False, inputs: Inputs = ()
) -> None:
    """Raise BadRequest, before the work, for a folder of reports that cannot be made, that one of
    the command's own `inputs` lies in, or that holds files, without `force`."""
    if path is None:
        return
    try:
        if path.exists() and not path.is_dir():
            raise BadRequest(f"{option} '{path}' is a file; name a folder")
        if not path.exists():
            _check_first_parent(path, option)
            return
        if not os.access(path, os.W_OK):
            raise BadRequest(f"cannot write '{path}': permission denied; give another {option}")
        for given in inputs:
            if given is not None and given.exists() and _same(path, given.parent):
                raise BadRequest(
                    f"{option} '{path}' holds '{given.name}', an input of the command; name "
                    "another folder"
                )
        held = next((f for f in sorted(path.iterdir()) if _is_whole(f)), None)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error, option) from None
    if held is not None and not force:
        raise BadRequest(
            f"{option} '{path}' holds '{held.name}'; name another folder, or overwrite with --force"
        )


def write_text(path: Path, text: str, *, option: str = "") -> None:
    """Write text in UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), option=option)


def write_table(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, option: str = ""
) -> None:
    """Write a CSV table; see `write_bytes`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue(), option=option)


def write_bytes(path: Path, data: bytes, *, option: str = "") -> None:
    """Write a file whole or not at all.

    What is not a file (a pipe, /dev/stdout) is written as it is; of a link, its target. Raises
    BadRequest where the place cannot be written, ShardwiseError where the disk is full.
    """
    try:
        if _stream(path) is not None or (path.exists() and not path.is_file()):
            _write_through(path, data)
            return
        _write_aside(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error, option) from None


def _is_whole(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(_ASIDE)


def _check_first_parent(path: Path, option: str) -> None:
    """The nearest folder that exists must let a folder be made in it."""
    above = next(p for p in path.absolute().parents if p.exists())
    if not above.is_dir():
        raise BadRequest(f"cannot write '{path}': '{above}' is a file; give another {option}")
    if not os.access(above, os.W_OK):
        raise BadRequest(f"cannot write '{path}': permission denied; give another {option}")
    with suppress(FileNotFoundError):
        os.stat(path)  # raises for a name that is too long


def _check_place(path: Path, option: str) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise BadRequest(
            f"cannot write '{path}': the folder '{folder}' does not exist; give another {option}"
        )
    if path.is_dir():
        raise BadRequest(f"cannot write '{path}': it is a folder; give another {option}")
    os.stat(folder)
    with suppress(FileNotFoundError):
        os.stat(path)  # raises for a name that is too long
    exists = path.exists()
    if (exists and not os.access(path, os.W_OK)) or not (
        (exists and not path.is_file()) or os.access(folder, os.W_OK)
    ):
        raise BadRequest(f"cannot write '{path}': permission denied; give another {option}")


def _make_beside(path: Path) -> None:
    """Make a file where the output will be written aside, and remove it: rights alone do not say
    that a folder takes files (/proc takes none, whoever asks)."""
    handle, made = tempfile.mkstemp(prefix=_ASIDE, dir=Path(os.path.realpath(path)).parent)
    os.close(handle)
    os.unlink(made)


def _same(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return False


def _stream(path: Path) -> int | None:
    """The number of an open file of this process, such as /dev/stdout; None for other paths."""
    name = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}.get(str(path), str(path))
    number = name.removeprefix("/dev/fd/")
    return int(number) if number != name and number.isdecimal() else None


def _write_through(path: Path, data: bytes) -> None:
    """To a stream after what it has already: redirected to a file, another handle would begin at
    the file's start."""
    number = _stream(path)
    with path.open("wb") if number is None else os.fdopen(os.dup(number), "wb") as file:
        file.write(data)


def _write_aside(path: Path, data: bytes) -> None:
    # The name beside is short whatever the file's is: names have at most 255 bytes.
    handle, aside = tempfile.mkstemp(prefix=_ASIDE, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), _mode(path))
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Bring a folder's names to the disk, where the system can."""
    with suppress(OSError):
        flush(folder)


def flush(path: Path) -> None:
    """Bring a file's data, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode(path: Path) -> int:
    """The mode of the file that is replaced, else what a new file would get."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def make_folder(path: Path) -> None:
    """Make the folder that `--out` names, and those above it. Raises as `write_bytes`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error, "--out") from None


def _unwritable(path: Path, error: Exception, option: str) -> ShardwiseError:
    reason = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) in _FAILED:
        return ShardwiseError(f"cannot write '{path}': {reason}")
    remedy = f"; give another {option}" if option else ""
    return BadRequest(f"cannot write '{path}': {reason}{remedy}")
