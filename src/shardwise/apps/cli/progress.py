"""A progress line on stderr for what takes longer than two seconds.

Silent without a terminal and with -q.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from shardwise.apps.cli.pages import wanted

_PATIENCE = 2.0
_PAUSE = 0.1


def progress_line(what: str, of: str = "parts of the slice") -> Callable[[int, int], None] | None:
    """A callback (done, of how many; 0: not known) that draws the line, or None: nobody watches."""
    if not sys.stderr.isatty() or wanted("quiet"):
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


@contextmanager
def stage_line() -> Iterator[Callable[[str, float], None] | None]:
    """A line on a terminal, gone afterwards: what a child is at, and for how long; None where
    nobody watches."""
    if not sys.stderr.isatty() or wanted("quiet"):
        yield None
        return

    def show(stage: str, seconds: float) -> None:
        click.echo(f"\r\x1b[2K{stage}, {seconds:.0f} s", nl=False, err=True)

    try:
        yield show
    finally:
        click.echo("\r\x1b[2K", nl=False, err=True)
