"""One training in a folder at a time: a lock that the kernel lets go when its process ends,
whatever ended it, so that nothing stale is left.

flock(2) on a file of the folder. It holds between machines where the file system carries it over
(NFS since Linux 2.6.12, Lustre mounted with `flock`); one without any locks is trained in unlocked.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shardwise.errors import BadRequest, Caution

_UNKNOWN = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)


@contextmanager
def sole(
    folder: Path, name: str, note: Callable[[str], None], patience: float = 0.0
) -> Iterator[None]:
    """Hold the lock `name` of a folder, which is made where it is not there. Raises BadRequest
    where another process still holds it after `patience` seconds."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f".{name}.lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write to --out '{folder}': {error.strerror}") from None
    with file:
        if not _taken(file, folder, time.monotonic() + patience):
            note(Caution(f"'{folder}' has no locks; a second training in it is not detected"))
        yield


def _taken(file: IO[str], folder: Path, until: float) -> bool:
    """Whether it is locked now; False where the file system has no locks."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise BadRequest(
                    f"{_holder(file)} is already training in '{folder}'; wait for it, stop it, "
                    "or give another --out"
                ) from None
            time.sleep(0.1)
        except OSError as error:
            if error.errno in _UNKNOWN:
                return False
            raise BadRequest(f"cannot lock --out '{folder}': {error.strerror}") from None
        else:
            file.seek(0)
            file.truncate()
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
            file.flush()
            return True


def _holder(file: IO[str]) -> str:
    """Who holds it, as it has written."""
    try:
        file.seek(0)
        held = json.loads(file.read())
        return f"process {held['pid']} on {held['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
