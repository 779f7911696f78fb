"""Seconds of the programs that an earlier commit had for the plans of docs/lab/compiled.md."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from made import made

from compiled.plans import FITS, MATCHED, phase_of, plan_of
from compiled.programs import priced_as
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import price_plan
from shardwise.commands.program.compiling import predicted_of, program_of
from shardwise.profiler.ahead import CompileCache
from shardwise.profiler.ahead.cache import read_entry
from shardwise.profiler.ahead.compile import compiled_of

COMMIT = "bb5af1a"
"""The state that issue 19 opened with."""
COUNTED = 0.95
"""Of the planned FLOPs, what a program must have as it is read."""
ROOT = Path(__file__).parents[2]
COMPILE = """
import sys
from pathlib import Path
sys.path.insert(0, "scripts")
from compiled import programs
from compiled.plans import FITS, MATCHED, plan_of
from shardwise.commands.base.inputs import Hardware

programs.OPTIONS.clear()
for name, row in {**MATCHED, **FITS}.items():
    if name in sys.argv[2:]:
        case = programs.compiled_case(plan_of(row, Hardware()), Hardware(), Path(sys.argv[1]))
        print(case.program.compiled.key, name, sep="\\t", flush=True)
"""
"""By that commit's own sources; what is in the folder already is not compiled again."""


def base_of(cache: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Date and commit of the programs, and the seconds of each that its chip holds; of all plans,
    or of `only` those. `uncounted` are programs whose text does not say how often their loops run,
    so that they lack FLOPs of the plan: of these the share that is there, and no seconds."""
    seconds, rows, hardware = {}, {**MATCHED, **FITS}, Hardware()
    uncounted: dict[str, float] = {}
    for name, key in _keys(cache.resolve(), list(only or rows)):
        row = rows[name]
        plan, phase = priced_as(plan_of(row, hardware)), phase_of(row)
        priced = price_plan(plan, hardware)
        found = compiled_of(key, *read_entry(CompileCache(root=cache).entry(key)), cached=True)
        said = predicted_of(priced, phase)
        program = program_of(phase, found, priced.answer.piece, said)
        share = float(program.work.work.flops()) / said.flops
        if share < COUNTED:
            uncounted[name] = share
        elif program.timeline is not None:
            seconds[name] = program.timeline.expected
        print(name, seconds.get(name), f"{share:.2f}", file=sys.stderr, flush=True)
    return {**made(), "commit": COMMIT, "seconds": seconds, "uncounted": uncounted}


def _keys(cache: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    """The plans that the commit compiles, each with the key of its program in the folder."""
    with _sources() as tree:
        env = {**os.environ, "PYTHONPATH": str(tree / "src"), "JAX_PLATFORMS": "cpu"}
        run = [sys.executable, "-c", COMPILE, str(cache), *names]
        child = subprocess.Popen(run, cwd=tree, env=env, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            key, _, name = line.rstrip("\n").partition("\t")
            yield name, key
        if child.wait():
            sys.exit(f"the programs of {COMMIT} stopped; run it again to go on")


@contextmanager
def _sources() -> Iterator[Path]:
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "-q", "--detach", str(tree), COMMIT], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
