"""The standard streams of a run: they can print every character, and may close or fill up.

`settle` before a command, `finish` after it. What a person reads on stderr passes `printable`.
"""

import errno
import os
import sys
import unicodedata
from contextlib import suppress

import click

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of characters that a terminal obeys, or shows as nothing."""


class ReaderGoneError(Exception):
    """Whoever read stdout has had enough (`| head`); no OSError, as click ends those with 1."""


class InterruptedRunError(Exception):
    """Ctrl-C; not KeyboardInterrupt, for which click prints a blank line."""


def settle() -> None:
    """Open what the caller has closed (`>&-`), so that no file of ours takes its number, and print
    characters that the encoding lacks as escapes."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


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
    the disk is full."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard()
    except OSError as error:
        code = full(error) or code
    return code


def full(error: OSError) -> int:
    """Exit code 1 and a message for a stream or disk that takes no more; 0 for another error."""
    if error.errno not in _FULL:
        return 0
    discard()
    where = f"'{error.filename}'" if error.filename else "the answer"
    say(f"error: cannot write {where}: {error.strerror}; free some space, or write elsewhere")
    return 1


def discard() -> None:
    """Send what is left in stdout nowhere, so that Python's own flush at the end says nothing."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
