"""The one way to start a process of our own: isolated, bounded, reaped, its folder gone.

Python puts the current folder (`-c`, `-m`) or that of a script first on its path, so that whoever
writes a `tempfile.py` there has it run. A child of ours starts with `-P` and PYTHONSAFEPATH (3.11:
neither folder is on the path, nor on that of its own children), takes this very package from where
it is here, and no entry of PYTHONPATH that means the current folder. That folder is appended last,
behind Python and what is installed, only for a `MODULE:FUNCTION` that the user named.

A child leads a session of its own and is killed with all that it started. It has one folder, which
is its TMPDIR too: what a compiler dumps there is gone however the child ends. Its stdin is held
open by its parent; when that closes, the parent is gone, and the child removes the folder and ends.
"""

import contextlib
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

FOLDER = "SHARDWISE_CHILD_FOLDER"
"""Environment variable that tells a child its folder."""

_PACKAGE = Path(__file__).parents[1]
# Only `shardwise` comes from the folder that it is in here: put on PYTHONPATH, that folder (it may
# be `site-packages`) would lead Python's own modules.
_START = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("shardwise", sys.argv[1])
sys.modules["shardwise"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["shardwise"])
from shardwise.boundary.child import _main
_main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that was started by `start`; call `stop` in any case. `made` is the folder that
    was made for it, None where the caller gave one."""

    process: subprocess.Popen[bytes]
    made: Path | None

    def wait(self, seconds: float, tick: Callable[[float], object] = lambda _: None) -> bool:
        """Whether it ended within so many seconds; `tick` hears those past, twice a second."""
        started = time.monotonic()
        while self.process.poll() is None:
            past = time.monotonic() - started
            if past > seconds:
                return False
            tick(past)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(min(0.5, seconds - past + 0.01))
        return True

    def stop(self) -> None:
        """Kill it with all that it started, reap it, and remove the folder made for it."""
        stdin = self.process.stdin
        if stdin is None or stdin.closed:
            return  # stopped before; its number may be another's now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            stdin.close()
        if self.made is not None:
            remove(self.made)


def python(target: str, *arguments: str, memory_bytes: int = 0) -> list[str]:
    """The command that calls `module:function` with texts in a child, isolated.

    `memory_bytes` limits the data that it may allocate (RLIMIT_DATA); 0 leaves it as it is.
    """
    package = str(_PACKAGE / "__init__.py")
    return [sys.executable, "-P", "-c", _START, package, target, str(memory_bytes), *arguments]


def start(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdout: IO[Any] | int | None = None,
    stderr: IO[Any] | int | None = None,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start a command, which `python` makes, with a folder for what is temporary.

    `environment` is added to ours; it keeps the open files of `pass_fds`, by their numbers. The
    caller removes a `folder` of its own; the child does if we are gone.
    """
    made = None if folder else Path(tempfile.mkdtemp(prefix="shardwise-"))
    place = folder or made
    assert place is not None
    try:
        process = subprocess.Popen(
            command,
            env=environment_of(environment or {}, place),
            stdin=subprocess.PIPE,  # held open: the child ends when it closes, with this process
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except BaseException:
        if made is not None:
            remove(made)
        raise
    return Child(process=process, made=made)


def environment_of(given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Our environment and what is given, with the path kept clean for all that it starts."""
    around = {**os.environ, **given}
    around["PYTHONPATH"] = os.pathsep.join(safe_entries(around.get("PYTHONPATH", "")))
    around |= {"PYTHONSAFEPATH": "1", "TMPDIR": str(folder), FOLDER: str(folder)}
    return {name: value for name, value in around.items() if name != "PYTHONPATH" or value}


def safe_entries(path: str) -> list[str]:
    """The entries of a PYTHONPATH, absolute, without the empty and relative ones that mean the
    current folder; one that is written out as an absolute path is the user's choice.

    >>> safe_entries("/a::.:/a:./")
    ['/a']
    """
    entries = path.split(os.pathsep)
    kept = [entry for entry in entries if os.path.isabs(entry)]
    with contextlib.suppress(OSError):  # a current folder that is gone holds nothing
        here = os.getcwd()
        found = [e for e in entries if os.path.isabs(e) or os.path.realpath(e) != here]
        kept = [os.path.abspath(entry) for entry in found]
    return list(dict.fromkeys(kept))


def append_current_folder() -> None:
    """Find the user's modules in the current folder too, after all others."""
    with contextlib.suppress(OSError):  # a current folder that is gone holds nothing
        here = os.getcwd()
        if here not in sys.path:
            sys.path.append(here)


def follow_parent() -> None:
    """Inside a child: end with the parent, however it ends; our stdin then closes."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                pass
        if FOLDER in os.environ:
            remove(Path(os.environ[FOLDER]))
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # what we started ends with us
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def remove(folder: Path) -> None:
    """Remove a folder that others may still write to: renamed first, it is found no more."""
    aside = folder.with_name(folder.name + ".gone")
    with contextlib.suppress(OSError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def limit_memory(memory_bytes: int) -> None:
    """Inside a child: limit the data that it may allocate, within the limit it already has."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _main() -> None:
    """Inside a child: call what `python` was given."""
    target, memory_bytes, *arguments = sys.argv[2:]
    sys.argv[1:] = arguments
    if int(memory_bytes):
        limit_memory(int(memory_bytes))
    follow_parent()
    function_named(target)(*arguments)


def function_named(target: str) -> Callable[..., Any]:
    """The function that a text `module:function` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
