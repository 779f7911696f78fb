"""A progress line on stderr for what takes longer than two seconds; silent without a terminal."""

import sys
import time
from collections.abc import Callable

_PATIENCE = 2.0
_PAUSE = 0.1


def progress_line(what: str, of: str = "parts of the slice") -> Callable[[int, int], None] | None:
    """A callback (done, of how many; 0: not known) that draws the line, or None: nobody watches."""
    if not sys.stderr.isatty():
        return None
    started = time.perf_counter()
    drawn = 0.0

    def show(done: int, total: int) -> None:
        nonlocal drawn
        seconds = time.perf_counter() - started
        if seconds < _PATIENCE or (seconds < drawn + _PAUSE and done != total):
            return
        drawn = seconds
        end = "\n" if done == total else ""
        many = f"{done} of {total}" if total else f"{done}"
        sys.stderr.write(f"\r{what}: {many} {of}, {seconds:.0f} s{end}")
        sys.stderr.flush()

    return show
