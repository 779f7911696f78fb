"""Several calls at a time; each waits for its own child process."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def places_for(each_bytes: int) -> int:
    """Processes of so many bytes that may run at a time: one a core, if each has room."""
    return max(1, min(os.cpu_count() or 1, available_bytes() // each_bytes))


def available_bytes(path: Path = Path("/proc/meminfo")) -> int:
    """Memory that is free, or can be; 0 where the system does not say."""
    if not path.exists():
        return 0
    sizes = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    return int(sizes.get("MemAvailable", "0 kB").split()[0]) * 1024


def at_once(call: Callable[[Item], Made], items: Iterable[Item], count: int) -> list[Made]:
    """`call` of each item, `count` at a time, in the items' order. The threads are daemons, so that
    Ctrl-C ends the process, and with it the children that they wait for."""
    asked = list(items)
    left: SimpleQueue[int] = SimpleQueue()
    done: dict[int, Made | BaseException] = {}
    for i in range(len(asked)):
        left.put(i)

    def work() -> None:
        while True:
            try:
                i = left.get_nowait()
            except Empty:
                return
            try:
                done[i] = call(asked[i])
            except BaseException as error:  # raised below, where somebody hears it
                done[i] = error

    threads = [Thread(target=work, daemon=True) for _ in range(min(count, len(asked)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # a signal is heard between
    made = [done[i] for i in range(len(asked))]
    for one in made:
        if isinstance(one, BaseException):
            raise one
    return made  # type: ignore[return-value]
