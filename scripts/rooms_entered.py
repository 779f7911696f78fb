#!/usr/bin/env python3
"""Which files of a folder a command enters: those of which it calls a function.

scripts/rooms_entered.py [--under planner] plan train --model llama-3-8b --on v5e:4x4 --batch 64seq
"""

import argparse
import contextlib
import io
import sys
from inspect import CO_OPTIMIZED
from pathlib import Path

import shardwise
from shardwise.apps.cli import main

ROOT = Path(shardwise.__file__).parent


def entered(words: list[str], under: str) -> dict[str, int]:
    """Calls by file, of the files below a folder of the package of which more than the import runs
    functions."""
    folder, calls = str(ROOT / under), {}

    def watch(frame, event, _) -> None:
        name, flags = frame.f_code.co_filename, frame.f_code.co_flags
        if name in calls:
            calls[name] += 1
        elif flags & CO_OPTIMIZED and name.startswith(folder) and not _imports(frame):
            calls[name] = 1  # bodies of modules and classes have no such flag

    sys.settrace(watch)  # a profile function is told of calls of C, too
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main(words)
    finally:
        sys.settrace(None)
    return {str(Path(name).relative_to(ROOT)): n for name, n in sorted(calls.items())}


def _imports(frame) -> bool:
    """Whether a frame runs because a module of the package is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(ROOT)):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--under", default="planner")
    asked, words = parser.parse_known_args()
    found = entered(words, asked.under)
    for name, count in found.items():
        print(f"{count:9,}  {name}")
    print(f"{len(found)} files of {asked.under}/ entered")
