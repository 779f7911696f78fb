"""Ctrl-C and SIGTERM, which clouds send before they take a machine: the first ends a run when the
step under way is saved, the second at once.

Python runs its handlers between two instructions of the main thread, which a compile may hold for
minutes. So a thread of our own hears of signals too, through `signal.set_wakeup_fd`: it answers the
first, and ends a process that has not ended itself `GRACE` seconds after the second. Several
processes must stop at one and the same step; JAX agrees on it (`agreed`).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import jax
from jax.experimental import multihost_utils

GRACE = 3.0
HEARD = (signal.SIGINT, signal.SIGTERM)
_DEFAULTS = (signal.default_int_handler, signal.SIG_DFL)


class Stop(KeyboardInterrupt):
    """A signal ended the run; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Hears SIGINT and SIGTERM while it is entered, from the main thread and where nobody else has
    taken them. Inside `waiting` the first is kept in `came`; any other raises Stop."""

    def __init__(self, note: Callable[[str], None], *, ours: bool = True) -> None:
        self.came: int | None = None
        self.urgent = False
        self._note = note
        self._ours = ours and threading.current_thread() is threading.main_thread()
        self._waits = False
        self._before: dict[int, Any] = {}
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._ours:
            taken = [n for n in HEARD if signal.getsignal(n) in _DEFAULTS]
            self._before = {number: signal.signal(number, self._hear) for number in taken}
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._ended.set()
        os.write(self._write, b"\0")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the first signal waits for the step to be saved."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _hear(self, number: int, _: object) -> None:
        if not self._waits or self.came is not None:
            self.urgent = True
            raise Stop(number)
        self.came = number

    def _listen(self) -> None:
        """The thread's side: numbers of signals, as they come, and 0 at the end."""
        times = 0
        while (number := os.read(self._read, 1)[0]) != 0:
            times += number in self._before
            if times == 1 and (self._waits or self.came is not None):
                with suppress(OSError, RuntimeError):
                    self._note(
                        "stopping after this step is saved; press Ctrl-C again to stop at once"
                    )
            if times > 1 and not self._ended.wait(GRACE):
                os._exit(128 + number)


def agreed(step: int, signals: Signals) -> int | None:
    """The signal to stop at now that `step` steps are done, if any: of one process its own, of
    several at the step that JAX has agreed on after any of them got SIGTERM."""
    if jax.process_count() == 1:
        return signals.came
    with suppress(RuntimeError):  # where its preemption service was switched off
        if multihost_utils.reached_preemption_sync_point(step):
            return signal.SIGTERM
    return None
