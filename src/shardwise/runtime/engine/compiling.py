"""Programs that are compiled on a thread of their own, the most wanted first, while others run."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

OFTEN = 2
"""How often a program is wanted before it is compiled: a shape that comes once stays without."""
QUIET = 2.0
"""Seconds without a program that a step waited for, after which others take the processors."""


class BackgroundCompiler:
    """Makes what is wanted by `make`, one at a time, and puts it into `made`."""

    def __init__(self, make: Callable[[Any], Any], made: dict[Any, Any]) -> None:
        self._make, self._made = make, made
        self._wanted: Counter[Hashable] = Counter()
        self._failed: set[Hashable] = set()
        self._lock, self._waited = Lock(), 0.0
        self._thread = ThreadPoolExecutor(1, "compiler")  # whose job Python's exit waits for
        self.busy = False
        """Whether something is compiled now, or about to be."""

    def want(self, key: Hashable) -> None:
        """Say once more that a program would be of use."""
        with self._lock:
            if key not in self._failed:
                self._wanted[key] += 1
            self._begin()

    def waited(self) -> None:
        """A step has waited for a program of its own just now, and the next one may."""
        self._waited = time.monotonic()

    def _begin(self) -> None:
        key, count = max(self._wanted.items(), key=lambda x: x[1], default=(None, 0))
        quiet = time.monotonic() - self._waited > QUIET
        if count < OFTEN or self.busy or not quiet:
            return
        try:
            self._thread.submit(self._run, key)
            self.busy = True
        except RuntimeError:  # Python ends
            self._wanted.clear()

    def _run(self, key: Hashable) -> None:
        try:
            self._made[key] = self._make(key)
        except Exception:  # steps of it stay in parts
            logging.getLogger(__name__).exception("the step program is not compiled")
            self._failed.add(key)
        with self._lock:
            del self._wanted[key]
            self.busy = False
            self._begin()
