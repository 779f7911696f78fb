"""A shell command of a page, run: shardwise's in this process, others by bash."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

RUNS = ("bench", "chat", "generate", "serve", "train")
"""Commands that start JAX, and have a process of their own."""


def run(command: str, folder: Path | str = ".", code: int = 0, notes: bool = False) -> str:
    """What a command prints on stdout when it is run in a folder.

    Before it what it says on stderr, where `notes` are wanted or a refusal is. Raises RuntimeError
    where it ends with another exit code than `code`.
    """
    program, *arguments = shlex.split(command)
    if program != "shardwise" or arguments[0] in RUNS or {"|", ">", "&&"} & {*arguments}:
        return _by_bash(command, folder, code, notes)
    if "--plot" in arguments:
        arguments.append("--force")  # a picture of an earlier time, which a checkout brings
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with streams[0], streams[1], contextlib.chdir(folder):
        ended = _shardwise(arguments)
    if ended != code:
        raise RuntimeError(f"{command} exits with {ended}: {err.getvalue()}")
    return (err.getvalue() if notes or code else "") + out.getvalue()


def _shardwise(arguments: list[str]) -> int:
    from shardwise.apps.cli import main

    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def _by_bash(command: str, folder: Path | str, code: int, notes: bool) -> str:
    words = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(words, cwd=folder, env=by_name(), text=True, capture_output=True)
    if done.returncode != code:
        raise RuntimeError(f"{command} exits with {done.returncode}: {done.stdout}{done.stderr}")
    return (done.stderr if notes or code else "") + done.stdout


def by_name() -> dict[str, str]:
    """The environment of a child that finds this Python's commands first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path}
