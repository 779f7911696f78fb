"""The standard streams of a run: they can print every character, and may close or fill up.

`settle` before a command, `finish` after it. What a person reads on stderr passes `printable`.
A run ends with the code of its command whatever becomes of stderr, and with 1 where stdout did not
take the answer, unless the reader has had enough.
"""

import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from shardwise.errors import ShardwiseError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_CLOSED = OSError(errno.EBADF, "standard output is closed")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of characters that a terminal obeys, or shows as nothing."""


class ReaderGoneError(Exception):
    """Whoever read stdout has had enough (`| head`); no OSError, as click ends those with 1."""


class InterruptedRunError(Exception):
    """Ctrl-C; not KeyboardInterrupt, for which click prints a blank line."""


class StandardStream(io.RawIOBase):
    """A standard stream that knows why it could not be written. `inner` is None where the caller
    closed it; one that is `tolerant` drops what cannot be written, and never fails."""

    def __init__(self, inner: Any, *, tolerant: bool) -> None:
        self.inner, self.tolerant = inner, tolerant
        self.failure: OSError | None = None

    def writable(self) -> bool:
        """As a stream that writes says."""
        return True

    def fileno(self) -> int:
        """The descriptor; raises OSError where the caller closed it."""
        return super().fileno() if self.inner is None else self.inner.fileno()

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return self.inner is not None and self.inner.isatty()

    def write(self, data: Any) -> int | None:
        """How many bytes were taken; raises OSError unless it is tolerant."""
        try:
            if self.inner is not None:
                return self.inner.write(data)
            self.failure = _CLOSED
        except OSError as error:
            self.failure = error
            if not self.tolerant:
                raise
        return memoryview(data).nbytes


def settle() -> None:
    """Open what the caller has closed (`>&-`), so that no file of ours takes its number; print
    characters that the encoding lacks as escapes; and end nothing for what stderr does not take."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _settled(stream, tolerant=stream is None or name == "stderr"))


def _settled(stream: Any, *, tolerant: bool) -> io.TextIOWrapper:
    """A text stream on a `StandardStream`, with the encoding that Python chose."""
    inner = stream and getattr(stream.buffer, "raw", stream.buffer)
    if inner is not None:
        with suppress(OSError):  # a pipe that does not wait for its reader would lose the rest
            os.set_blocking(inner.fileno(), True)
    return io.TextIOWrapper(
        io.BufferedWriter(StandardStream(inner, tolerant=tolerant)),
        stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=bool(stream and (stream.line_buffering or stream.write_through)),
    )


def _failure() -> OSError | None:
    """Why stdout could not be written; None where all of it was."""
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "failure", None)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print an answer after which files are still to be written: a reader that has had enough of
    the one does not keep the others from being written."""
    try:
        yield
    except BrokenPipeError:
        discard()


LONGEST = 2_400
"""Characters of a message: a page. What is longer quotes a value that nobody reads whole."""


def say(message: str) -> None:
    """One message on stderr, printable, of at most a page; nothing where it cannot be written."""
    with suppress(OSError):
        click.echo(_page(printable(message)), err=True)


def _page(message: str) -> str:
    """A message without its middle where it is too long: it ends with the remedy."""
    left_out = len(message) - LONGEST
    if left_out <= 0:
        return message
    first = LONGEST * 2 // 3
    return f"{message[:first]} ({left_out:,} characters left out) {message[first + left_out :]}"


def printable(text: str) -> str:
    """The text with control characters, escape sequences and half surrogates spelt out.

    >>> printable("no 'a\\x1b[2Jb'")
    "no 'a\\\\x1b[2Jb'"
    """
    return "".join(_spelt(c) if _hidden(c) else c for c in text)


def _hidden(c: str) -> bool:
    return c not in "\n\t" and unicodedata.category(c) in _HIDDEN


def _spelt(c: str) -> str:
    return c.encode("unicode_escape", "backslashreplace").decode()


def finish(code: int) -> int:
    """Bring stdout out, and say how the run ends: quietly where the reader is gone, with 1 where
    the answer could not be written."""
    error = _flushed()
    if error is None or isinstance(error, BrokenPipeError):
        return code
    return full(error) or code


def _flushed() -> OSError | None:
    try:
        sys.stdout.flush()
    except OSError as error:
        discard()
        return error
    return _CLOSED if _failure() is _CLOSED else None  # others were raised where they happened


def reader_left(error: BrokenPipeError) -> Exception:
    """What a closed pipe means: that stdout's reader has had enough, or that a connection broke."""
    if error is _failure():
        return ReaderGoneError()
    return ShardwiseError("a connection was closed by its other end; see whether it still runs")


def full(error: OSError) -> int:
    """Exit code 1 and a message for a disk that is full, or whatever keeps stdout from being
    written; 0 for another error."""
    if error.errno not in _FULL and error is not _failure():
        return 0
    discard()
    where = f"'{error.filename}'" if error.filename else "the answer"
    remedy = "free some space, or write elsewhere" if error.errno in _FULL else "write to a file"
    say(f"error: cannot write {where}: {error.strerror}; {remedy}")
    return 1


def discard() -> None:
    """Send what is left in stdout nowhere, so that Python's own flush at the end says nothing."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
