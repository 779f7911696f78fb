"""Read a file that somebody named: its size is limited, its text is UTF-8, a pipe may not stall.

Every function takes `what`, the noun that messages call the file by ("the plan", "the trace"), and
`remedy`, what to do instead.
"""

import io
import os
import select
import stat
import time
from pathlib import Path

from shardwise.errors import BadRequest
from shardwise.units import format_bytes

DOCUMENT_BYTES = 4 * 2**20
"""A document that a person or a program writes: a plan, a config.json, an index of weights."""
TABLE_BYTES = 64 * 2**20
"""A table of measurements, a trace of requests, a capture."""
MOST_LINES = 500_000
"""Rows of a table, or requests of a trace."""
PIPE_SECONDS = 10.0
"""How long a pipe may stay silent."""


def read_text(path: Path, what: str, *, most: int = DOCUMENT_BYTES, remedy: str = "") -> str:
    """The text of a file of at most `most` bytes, less a byte order mark.

    Raises BadRequest for what cannot be read, is longer, or is not text in UTF-8.
    """
    return decode(read_bytes(path, what, most=most, remedy=remedy), path, what)


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a text file of at most `MOST_LINES`, without their ends. Raises BadRequest."""
    return split_lines(read_text(path, what, most=TABLE_BYTES), f"{what} '{path}'")


def split_lines(text: str, what: str, *, ends: bool = False) -> list[str]:
    """Lines as an editor counts them: they end with \\n, \\r\\n or \\r, not with the other line
    ends of Unicode, which JSON text may hold. `ends` keeps the ends."""
    if max(text.count("\n"), text.count("\r")) > MOST_LINES:
        raise BadRequest(f"{what} has more than {MOST_LINES:,} lines, the limit; shorten it")
    lines = list(io.StringIO(text, newline=""))
    return lines if ends else [line.rstrip("\r\n") for line in lines]


def is_file(path: Path) -> bool:
    """Whether a path is a file; no for a name that the system cannot have (too long, a NUL)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; no for a name that the system cannot have."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def decode(data: bytes, path: Path | str, what: str) -> str:
    """Bytes as text in UTF-8; messages name the line of the first byte that is none."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadRequest(f"{what} '{path}' is not text in UTF-8 but in UTF-16; save it as UTF-8")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise BadRequest(f"{what} '{path}' is not text: line {line} holds a NUL byte")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadRequest(
            f"{what} '{path}' is not text in UTF-8 (byte {error.start}, line {line}); "
            "save it as UTF-8"
        ) from None


def read_bytes(path: Path, what: str, *, most: int = DOCUMENT_BYTES, remedy: str = "") -> bytes:
    """The bytes of a file, or of a pipe that does not stall, of at most `most`.

    Raises BadRequest for what cannot be read, is not a file (a folder, a device) or is longer.
    """
    try:
        # Without O_NONBLOCK a named pipe that nobody writes would hang in `open`.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise unreadable(path, what, error, remedy) from None
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            reason = "it is a folder" if stat.S_ISDIR(mode) else "it is not a file"
            raise BadRequest(_message(path, what, reason, remedy))
        data = _drain(handle, most, path, what) if stat.S_ISFIFO(mode) else _all(handle, most)
    except OSError as error:
        raise unreadable(path, what, error, remedy) from None
    finally:
        os.close(handle)
    if len(data) > most:
        raise BadRequest(
            f"{what} '{path}' is longer than {format_bytes(most)}, the limit for this kind of file"
        )
    return data


def unreadable(path: Path | str, what: str, error: Exception, remedy: str = "") -> BadRequest:
    """The error for a file that the system does not give us (or a path with a NUL)."""
    reason = getattr(error, "strerror", None) or str(error)
    return BadRequest(_message(path, what, reason[:1].lower() + reason[1:], remedy))


def _message(path: Path | str, what: str, reason: str, remedy: str) -> str:
    return f"cannot read {what} '{path}': {reason}" + (f"; {remedy}" if remedy else "")


def _all(handle: int, most: int) -> bytes:
    with os.fdopen(handle, "rb", closefd=False) as file:
        return file.read(most + 1)


def _drain(handle: int, most: int, path: Path, what: str) -> bytes:
    """What a pipe brings until it ends; a shell's `<(command)` may take a while to begin."""
    found, until = bytearray(), time.monotonic() + PIPE_SECONDS
    while len(found) <= most:
        ready, _, _ = select.select([handle], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise BadRequest(
                f"{what} '{path}' is a pipe that delivered nothing for {PIPE_SECONDS:g} s; "
                "write it to a file first"
            )
        try:
            piece = os.read(handle, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        if not piece:
            break
        found += piece
        until = time.monotonic() + PIPE_SECONDS
    return bytes(found)
