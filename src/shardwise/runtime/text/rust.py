"""The one place where failures of libraries in Rust become ours.

They raise bare `Exception` for what they refuse, and for what their authors did not expect a
`PanicException`, which is none: it derives from BaseException, so that `except Exception` lets it
end the program. A panic also writes to standard error, with a page of the library's own stack where
RUST_BACKTRACE asks for it: that is for its authors, and the message says what a user can do.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.errors import BadRequest, ShardwiseError

LONGEST_ERROR = 300

os.environ["RUST_BACKTRACE"] = "0"


@contextmanager
def from_rust(what: str, remedy: str) -> Iterator[None]:
    """Calls of `tokenizers` or `llguidance`; BadRequest says `what` has failed and the `remedy`."""
    try:
        yield
    except (ShardwiseError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise  # Ctrl-C, and what else is none of theirs
        raise BadRequest(f"{what}: {one_line(str(error))}; {remedy}") from None


def one_line(error: str) -> str:
    """A library's error on one line, less the state of its parser."""
    line = " ".join(error.partition("\n<")[0].split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= LONGEST_ERROR else line[:LONGEST_ERROR] + "..."
