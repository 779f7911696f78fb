#!/usr/bin/env python
"""Compile many small programs for many chips with no such chip at hand; pack what comes out.

    scripts/hlo_corpus.py FOLDER               what is missing of programs x chips, one at a time
    scripts/hlo_corpus.py FOLDER --pack OUT    the modules of FOLDER as one .tar.xz

Needs JAX with libtpu; `--chips ... h100` the CUDA plugin and nvcc's package too. FOLDER gets
`PROGRAM.CHIP.txt`, a scheduled module, or `PROGRAM.CHIP.error` with the reason: where the compiler
does not take a program, that is the answer. Stopped and started again it goes on where it was.
"""

import argparse
import io
import json
import re
import sys
import tarfile
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from hlo_programs import PROGRAMS
from planned_steps.job import AWAY_FROM_HARDWARE

from shardwise.errors import ShardwiseError
from shardwise.profiler import run_source

HERE = Path(__file__).parent
CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x", "cpu")
SECONDS = 240.0


def main() -> int:
    options = _options()
    if options.pack:
        return _pack(options.folder, options.pack)
    options.folder.mkdir(parents=True, exist_ok=True)
    todo = [
        (name, chip)
        for name in options.programs or PROGRAMS
        for chip in options.chips
        if not list(options.folder.glob(f"{name}.{chip}.*"))
    ]
    for number, (name, chip) in enumerate(todo, 1):
        start = time.monotonic()
        outcome = _compile(name, chip, options.folder)
        seconds = time.monotonic() - start
        print(f"{number}/{len(todo)} {name} {chip}: {outcome}, {seconds:.0f} s", flush=True)
    return 0


def _compile(name: str, chip: str, folder: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="shardwise-") as dump:
        # A child of its own for each: some programs abort the compiler, some never end.
        around = {"DUMP": dump, **AWAY_FROM_HARDWARE}  # read when JAX is imported
        source = (
            f"import os, sys\nsys.path.insert(0, {str(HERE)!r})\nos.environ.update({around!r})\n"
            "from hlo_programs import compile_one\n"
            f"compile_one({name!r}, {chip!r}, {str(folder.resolve())!r})\n"
        )
        try:
            run_source(source, devices=8, seconds=SECONDS)
        except ShardwiseError as error:
            (folder / f"{name}.{chip}.error").write_text(f"{error}\n")
            return f"no ({str(error)[:150]})"
    return f"{(folder / f'{name}.{chip}.txt').stat().st_size / 1e3:.0f} kB"


def _pack(folder: Path, out: Path) -> int:
    """One archive, programs of a kind side by side so that they compress; made reproducibly."""
    files = sorted(folder.glob("*.txt"))
    errors = {p.stem: p.read_text().strip() for p in sorted(folder.glob("*.error"))}
    made = {"jax": version("jax"), "libtpu": version("libtpu"), "refused": errors}
    with tarfile.open(out, "w:xz", preset=9) as archive:
        _add(archive, "made.json", json.dumps(made, indent=1))
        for path in files:
            _add(archive, path.name, _plain(path.read_text()))
    print(f"{len(files)} modules, {out.stat().st_size / 1e6:.2f} MB, {len(errors)} refused")
    return 0


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _plain(text: str) -> str:
    """Without paths of this machine and without the bytes of kernels, which nothing here reads."""
    text = re.sub(r'"/[^"\s]*/([^"/\s]+)"', r'"\1"', text)
    return re.sub(r"[A-Za-z0-9+/=\\]{4000,}", "...", text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chips", nargs="+", default=CHIPS, choices=(*CHIPS, "h100"))
    parser.add_argument("--programs", nargs="+", default=(), choices=tuple(PROGRAMS))
    parser.add_argument("--pack", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
