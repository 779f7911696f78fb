"""One case: a command with damaged input, in a process and a folder of its own, and what it broke.

A case breaks a rule if it ends with a traceback or an undocumented exit code, takes over `SECONDS`
of CPU, or `BYTES` of memory more than the undamaged example of its kind, leaves a file that it was
not asked for, runs what the input says, prints JSON that is none, or says nothing of what is wrong.
"""

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 20.0
BYTES = 500_000_000
MOST_BYTES = 3 * 2**30
CODES = (0, 1, 2, 3, 4, 5)
LONGEST_MESSAGE = 3000


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files to write, then a command line or a function of the folder; `outputs` may appear."""

    files: dict[str, bytes]
    run: list[str] | Callable[[Path], Any]
    outputs: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Outcome:
    """How a case ended; `broken` names the rules that it broke."""

    code: int
    seconds: float
    bytes: int
    out: str
    err: str
    broken: list[str] = field(default_factory=list)


def warm() -> None:
    """Import what commands import as they run, so that forks find it."""
    import pkgutil

    import pydantic  # noqa: F401
    import yaml  # noqa: F401

    import shardwise

    for layer in (
        "apps",
        "planner",
        "plans",
        "models",
        "hardware",
        "sharding",
        "commands",
        "evidence",
        "book",
    ):
        folder = str(Path(shardwise.__path__[0]) / layer)
        for found in pkgutil.walk_packages([folder], f"shardwise.{layer}."):
            importlib.import_module(found.name)


def run_case(case: Case, undamaged: Callable[[], int] = lambda: 0) -> Outcome:
    """Run a case in a fork of this process, so that nothing is imported anew.

    `undamaged` says what memory the undamaged example takes, at least what this process has; it is
    asked only where the case takes more.
    """
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    inside = place / "here"
    inside.mkdir()
    for name, data in case.files.items():
        (inside / name).write_bytes(data)
    try:
        outcome = _forked(case, place, inside)
        outcome.broken += _judged(case, outcome, place, inside)
        outcome.broken += _memory(outcome, undamaged)
        return outcome
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _forked(case: Case, place: Path, inside: Path) -> Outcome:
    sys.stdout.flush()
    sys.stderr.flush()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(case, place, inside)
    code, usage, stopped = _wait(child)
    seconds = usage.ru_utime + usage.ru_stime
    outcome = Outcome(
        code=code,
        seconds=seconds,
        bytes=usage.ru_maxrss * 1024,
        out=(place / "out").read_text("utf-8", "replace"),
        err=(place / "err").read_text("utf-8", "replace"),
    )
    # Waiting is a hang too, but a busy machine is none: the clock gets three times the limit.
    if stopped or seconds > SECONDS or time.monotonic() - begun > 3 * SECONDS:
        outcome.broken.append(f"over {SECONDS:g} s")
    return outcome


def _wait(child: int) -> tuple[int, Any, bool]:
    until, stopped = time.monotonic() + 3 * SECONDS, False
    pause = 0.0005
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code, usage, stopped or code == -signal.SIGXCPU
        if time.monotonic() > until and not stopped:
            os.kill(child, signal.SIGKILL)
            stopped = True
        time.sleep(pause)
        pause = min(0.02, pause * 1.5)


def _child(case: Case, place: Path, inside: Path) -> None:
    """Never returns."""
    code = 99
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS) + 1, int(SECONDS) + 2))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT, 0o600), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
        for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"):
            os.environ[name] = str(place / name.lower())
            (place / name.lower()).mkdir()
        tempfile.tempdir = None
        os.chdir(inside)
        warnings.simplefilter("error")
        code = _called(case, inside)
    except BaseException:
        traceback.print_exc()
        code = 98
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _stream(number: int, errors: str) -> Any:
    """A stream as Python makes it at its start."""
    return os.fdopen(number, "w", encoding="utf-8", errors=errors, closefd=False)


def _called(case: Case, inside: Path) -> int:
    from shardwise.apps.cli import main
    from shardwise.apps.cli.streams import say
    from shardwise.errors import ShardwiseError

    try:
        if callable(case.run):
            case.run(inside)
        else:
            main(case.run)
    except ShardwiseError as error:
        say(f"error: {error}")
        return error.exit_code
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0


def _judged(case: Case, outcome: Outcome, place: Path, inside: Path) -> list[str]:
    broken = []
    if "Traceback" in outcome.err:
        broken.append("traceback: " + outcome.err.strip().splitlines()[-1][:200])
    elif outcome.code not in CODES and "over 20 s" not in outcome.broken:
        broken.append(f"exit code {outcome.code}")
    broken += _files(case, place, inside)
    words = case.run if isinstance(case.run, list) else []
    if "--json" in words and outcome.code == 0 and not {"-h", "--help"} & set(words):
        broken += _json(outcome.out)
    if outcome.code in (1, 2, 3, 4, 5) and not broken:
        broken += _message(outcome)
    return broken


def _memory(outcome: Outcome, undamaged: Callable[[], int]) -> list[str]:
    least = _most_so_far()
    if outcome.bytes <= least + BYTES:
        return []
    above = outcome.bytes - max(least, undamaged())
    return [f"{above / 1e6:.0f} MB more than the undamaged example"] if above > BYTES else []


def _most_so_far() -> int:
    """Bytes that this process has taken at most. Its rusage would begin with what the process that
    started it has."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def _message(outcome: Outcome) -> list[str]:
    """What a refusal must be: said on stderr, in text that a terminal prints as it is."""
    if outcome.code == 4:
        return []
    if "error: " not in outcome.err and not outcome.err.startswith("Usage:"):
        return [f"exit code {outcome.code} without a message"]
    if len(outcome.err) > LONGEST_MESSAGE:
        return [f"a message of {len(outcome.err)} characters"]
    if any(c not in "\n\t" and not c.isprintable() for c in outcome.err):
        return ["a message that no terminal prints as it is"]
    return []


def _json(out: str) -> list[str]:
    def refuse(text: str) -> Any:
        raise ValueError(text)

    try:
        json.loads(out, parse_constant=refuse)
    except ValueError as error:
        return [f"invalid JSON: {error}"]
    return []


def _files(case: Case, place: Path, inside: Path) -> list[str]:
    """Files that nobody asked for, and signs of input that ran."""
    allowed = {*case.files, *case.outputs}
    found = [p.name for p in inside.iterdir() if p.name not in allowed]
    known = {"here", "out", "err", "home", "xdg_state_home", "xdg_cache_home", "tmpdir"}
    found += [p.name for p in place.iterdir() if p.name not in known]
    found += [p.name for name in ("home", "tmpdir") for p in (place / name).iterdir()]
    changed = [
        name
        for name, data in case.files.items()
        if name not in case.outputs
        and (not (inside / name).exists() or (inside / name).read_bytes() != data)
    ]
    broken = [f"wrote {name}" for name in found]
    return broken + [f"changed {name}" for name in changed]
