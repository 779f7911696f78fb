"""Work in a child process: virtual CPU devices, a time limit, a memory limit, a JSON answer.

JAX fixes its devices when it starts and some compiler errors abort the process, so whatever needs
N devices, or a compiler that may die, runs in a child. Requests and answers are JSON in files; what
the child prints is kept for the error message.
"""

import importlib
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shardwise import errors
from shardwise.boundary.child import function_named, python, start
from shardwise.errors import BadRequest, MissingPart, ShardwiseError
from shardwise.units import format_bytes

Watch = Callable[[str, float], None]
"""Hears what a child is at, and its seconds so far."""

STAGE = "SHARDWISE_STAGE_FILE"
SECONDS = 300.0
MEMORY_BYTES = 8 * 2**30
MOST_SAID = 2**24
"""Bytes of what a child printed that are read back: the last ones."""
QUICK_COMPILE = ("--xla_backend_optimization_level=0",)
"""XLA flags that save most of the compile time on CPUs: slower machine code from the same HLO."""

NO_LIMIT = 2**46
"""Bytes: drivers of accelerators reserve more addresses than there is memory."""
KEEP_HEAP = {
    "GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:"
    "glibc.malloc.trim_threshold=1099511627776:glibc.malloc.top_pad=67108864"
}
"""Environment of a child that is timed on CPUs: memory that a step gave back is there for the next.
By default glibc maps every large array anew, and its page faults are timed (64 MiB: 115 ms in place
of 20 on 2 virtual cores)."""


_CHATTER = ("@", "***", "WARNING", "Failed to find host bounds", "E0000", "I0000", "=== Source")
"""How lines begin that say nothing of a crash: its stack, and what libtpu prints on any host."""


@dataclass(frozen=True, slots=True)
class ChildBounds:
    """What a child may take, and what a user raises for more of it."""

    seconds: float
    memory_bytes: int
    time_option: str
    memory_option: str


def run_function(
    target: str,
    arguments: Mapping[str, Any],
    *,
    devices: int = 8,
    seconds: float = SECONDS,
    memory_bytes: int = MEMORY_BYTES,
    xla_flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    watch: Watch | None = None,
    what: str = "",
    raised_by: tuple[str, str] = ("its time limit", "its memory limit"),
) -> Any:
    """Call `module:function` with keyword arguments in a child that has N virtual CPU devices.

    Arguments and answer are JSON. `xla_flags` are added to XLA_FLAGS; `memory_bytes` limits the
    data that the child may allocate. `environment` is added to the child's; `folder`, if the
    caller has one for the answer, is where the child works; `watch` hears what the child is at
    (`stage`) and for how many seconds it has run, about once a second. `raised_by` names what a
    user raises for more seconds and more memory.
    Raises MissingPart without JAX, the child's own ShardwiseErrors as they are, and ShardwiseError,
    with the child's last words, if it fails, crashes, runs out of memory or takes longer than
    `seconds`. The child is gone when this returns or raises, and ends by itself with its parent.
    """
    need_jax()
    with _place(folder) as place:
        request, answer = place / "request.json", place / "answer.json"
        request.write_text(json.dumps({"target": target, "arguments": arguments}))
        call = "shardwise.profiler.child:_answer"
        command = python(call, str(request), str(answer), memory_bytes=memory_bytes)
        around = _environment(devices, xla_flags) | dict(environment or {})
        around[STAGE] = str(place / "stage")
        bounds = ChildBounds(seconds, memory_bytes, *raised_by)
        _run(command, around, place, bounds, what or target, watch)
        if not answer.is_file():
            raise ShardwiseError(f"{what or target} ended its process without an answer")
        said = json.loads(answer.read_text())
    if "error" in said:
        kind = getattr(errors, said["error"]["kind"], ShardwiseError)
        raise kind(said["error"]["text"])
    return said["value"]


@contextmanager
def _place(folder: Path | None = None) -> Iterator[Path]:
    """The caller's folder for a child, or a new one; the child removes either if we are gone."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="shardwise-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def run_source(
    source: str,
    *,
    devices: int = 8,
    seconds: float = SECONDS,
    memory_bytes: int = MEMORY_BYTES,
    xla_flags: Sequence[str] = (),
) -> str:
    """Run Python source as a file of its own, as `python FILE` would, and return what it prints."""
    need_jax()
    with _place() as folder:
        path = folder / "program.py"
        path.write_text(source)
        call = "shardwise.profiler.child:_run_file"
        command = python(call, str(path), memory_bytes=memory_bytes)
        bounds = ChildBounds(seconds, memory_bytes, "its time limit", "its memory limit")
        around = _environment(devices, xla_flags)
        return _run(command, around, folder, bounds, "the program")


def stage(text: str) -> None:
    """Inside a child: say what is being done now, for whoever watches."""
    if STAGE in os.environ:
        Path(os.environ[STAGE]).write_text(text)


def need_jax() -> None:
    """Raise MissingPart, with the install command, where JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        remedy = "install it with `pip install '.[run]'`"
        raise MissingPart(f"running and compiling programs needs JAX, which is missing; {remedy}")


def need_libtpu() -> None:
    """Raise MissingPart, with the install command, where the TPU compiler is not installed."""
    need_jax()
    if importlib.util.find_spec("libtpu") is None:
        remedy = "install it with `pip install '.[tpu-compile]'`"
        raise MissingPart(f"compiling for TPUs needs libtpu, which is missing; {remedy}")


def run_here(
    target: str,
    arguments: Mapping[str, Any],
    *,
    cpu_devices: int | None,
    seconds: float,
    watch: Watch | None,
    what: str,
) -> Any:
    """`run_function` on this machine's devices, or on `cpu_devices` virtual ones."""
    if cpu_devices is not None and cpu_devices < 1:
        raise BadRequest(f"--cpu-devices is {cpu_devices}; it must be 1 or more")
    platform = "cpu" if cpu_devices is not None else os.environ.get("JAX_PLATFORMS", "")
    return run_function(
        target,
        arguments,
        devices=cpu_devices or host_devices(),
        seconds=seconds,
        memory_bytes=NO_LIMIT,
        environment={"JAX_PLATFORMS": platform, **KEEP_HEAP},
        watch=watch,
        what=what,
    )


def host_devices() -> int:
    """The virtual CPU devices that the user's own XLA_FLAGS ask for, 1 where they say nothing: a
    child that is to see the devices of this machine sees as many."""
    found = re.findall(rf"{_COUNT}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(1, int(found[-1])) if found else 1


_COUNT = "--xla_force_host_platform_device_count"


def _environment(devices: int, xla_flags: Sequence[str]) -> dict[str, str]:
    if devices < 1:
        raise BadRequest(f"a child process with {devices} devices; it needs at least 1")
    flags = [
        flag
        for flag in os.environ.get("XLA_FLAGS", "").split()
        if not flag.startswith("--xla_force_host_platform_device_count")
    ]
    flags += [f"{_COUNT}={devices}", *xla_flags]
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    bounds: ChildBounds,
    what: str,
    watch: Watch | None = None,
) -> str:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = start(command, folder=folder, environment=environment, stdout=out, stderr=err)
        try:
            in_time = child.wait(bounds.seconds, _told(environment.get(STAGE, ""), watch))
        finally:
            child.stop()
        printed, said = _end_of(out), _end_of(err)
    if not in_time:
        remedy = f"ask for less, or raise {bounds.time_option}"
        raise ShardwiseError(f"{what} was stopped after {bounds.seconds:g} s; {remedy}")
    if child.process.returncode:
        words = _last_words(child.process.returncode, printed, said, bounds)
        raise ShardwiseError(f"{what} failed in its process: {words}")
    return printed


def _told(stage_file: str, watch: Watch | None) -> Callable[[float], object]:
    """Tells whoever watches what the child is at; it may be writing that just now."""

    def tell(past: float) -> None:
        if watch is not None:
            path = Path(stage_file)
            watch((path.is_file() and path.read_text()) or "starting", past)

    return tell


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_SAID))
    return file.read().decode(errors="replace")


def _last_words(code: int, out: str, err: str, bounds: ChildBounds) -> str:
    """The end of the child's output: the error of a Python exception is its last line."""
    if "MemoryError" in err or "RESOURCE_EXHAUSTED" in err or "bad_alloc" in err:
        return f"out of memory; ask for less, or raise {bounds.memory_option}"
    if code < 0:
        name = signal.Signals(-code).name
        limit = f"it may take {format_bytes(bounds.memory_bytes)}"
        reason = _reason(err) or f"{limit}: if that is too little, raise {bounds.memory_option}"
        return f"it crashed with {name}; {reason}"
    lines = [line for line in (err or out).splitlines() if line.strip()]
    # JAX ends a traceback with a note about its own frames.
    ends = [line for line in lines if not line.startswith(("---", "For simplicity, JAX"))]
    return ends[-1] if ends else f"exit status {code}"


def _reason(err: str) -> str:
    """The line of a crash that says why: what a failed check of the compiler printed, else the last
    before its stack; empty if there is only what libtpu prints in any case."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    fatal = [line for line in lines if "Check failed" in line or line.startswith("F0")]
    told = [line for line in lines if not line.startswith(_CHATTER)]
    return (fatal or told or [""])[0][:300]


def _answer(request_file: str, answer_file: str) -> None:
    """Inside the child: read the request, call the function, write the answer."""
    request = json.loads(Path(request_file).read_text())
    try:
        said = {"value": function_named(request["target"])(**request["arguments"])}
    except ShardwiseError as error:
        said = {"error": {"kind": type(error).__name__, "text": str(error)}}
    Path(answer_file).write_text(json.dumps(said))


def _run_file(path: str) -> None:
    """Inside the child: run a source file as `__main__`."""
    sys.argv = [path]
    code = compile(Path(path).read_text(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path})
