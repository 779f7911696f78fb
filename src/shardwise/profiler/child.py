"""Work in a child process: virtual CPU devices, a time limit, a memory limit, a JSON answer.

JAX fixes its devices when it starts and some compiler errors abort the process, so whatever needs
N devices, or a compiler that may die, runs in a child. Requests and answers are JSON in files; what
the child prints is kept for the error message.
"""

import importlib
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, MissingPart, ShardwiseError

SECONDS = 300.0
MEMORY_BYTES = 8 * 2**30
QUICK_COMPILE = ("--xla_backend_optimization_level=0",)
"""XLA flags that save most of the compile time on CPUs: slower machine code from the same HLO."""


def run_function(
    target: str,
    arguments: Mapping[str, Any],
    *,
    devices: int = 8,
    seconds: float = SECONDS,
    memory_bytes: int = MEMORY_BYTES,
    xla_flags: Sequence[str] = (),
) -> Any:
    """Call `module:function` with keyword arguments in a child that has N virtual CPU devices.

    Arguments and answer are JSON. `xla_flags` are added to XLA_FLAGS; `memory_bytes` limits the
    data that the child may allocate.
    Raises MissingPart without JAX and ShardwiseError, with the child's last words, if it fails,
    runs out of memory or takes longer than `seconds`.
    """
    need_jax()
    with tempfile.TemporaryDirectory(prefix="shardwise-") as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(
            json.dumps({"target": target, "arguments": arguments, "memory_bytes": memory_bytes})
        )
        code = "from shardwise.profiler.child import _answer; _answer()"
        command = [sys.executable, "-c", code, str(request), str(answer)]
        _run(command, _environment(devices, xla_flags), seconds, target)
        return json.loads(answer.read_text())


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
    with tempfile.TemporaryDirectory(prefix="shardwise-") as folder:
        path = Path(folder) / "program.py"
        path.write_text(source)
        code = "from shardwise.profiler.child import _run_file; _run_file()"
        command = [sys.executable, "-c", code, str(path), str(memory_bytes)]
        return _run(command, _environment(devices, xla_flags), seconds, "the program")


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


def _environment(devices: int, xla_flags: Sequence[str]) -> dict[str, str]:
    if devices < 1:
        raise BadRequest(f"a child process with {devices} devices; it needs at least 1")
    flags = [
        flag
        for flag in os.environ.get("XLA_FLAGS", "").split()
        if not flag.startswith("--xla_force_host_platform_device_count")
    ]
    flags += [f"--xla_force_host_platform_device_count={devices}", *xla_flags]
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float, what: str) -> str:
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        remedy = "ask for less, or for more time"
        raise ShardwiseError(f"{what} was stopped after {seconds:g} s; {remedy}") from None
    finally:
        _stop(process)
    if process.returncode:
        raise ShardwiseError(f"{what} failed in its process: {_last_words(process, out, err)}")
    return out


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _last_words(process: subprocess.Popen[str], out: str, err: str) -> str:
    """The end of the child's output: the error of a Python exception is its last line."""
    if "MemoryError" in err or "RESOURCE_EXHAUSTED" in err or "bad_alloc" in err:
        return "out of memory; ask for less, or raise its memory limit"
    lines = [line for line in (err or out).splitlines() if line.strip()]
    # JAX ends a traceback with a note about its own frames.
    ends = [line for line in lines if not line.startswith(("---", "For simplicity, JAX"))]
    return ends[-1] if ends else f"exit status {process.returncode}"


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _answer() -> None:
    """Inside the child: read the request, call the function, write the answer."""
    request = json.loads(Path(sys.argv[1]).read_text())
    _limit(request["memory_bytes"])
    module, _, name = request["target"].partition(":")
    value = getattr(importlib.import_module(module), name)(**request["arguments"])
    Path(sys.argv[2]).write_text(json.dumps(value))


def _run_file() -> None:
    """Inside the child: run a source file as `__main__`."""
    path, memory_bytes = sys.argv[1:]
    _limit(int(memory_bytes))
    sys.argv = [path]
    code = compile(Path(path).read_text(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path})
