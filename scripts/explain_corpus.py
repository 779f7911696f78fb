"""Compile the corpus of reported faults, for the tests of `explain`.

`PYTHONPATH=scripts python scripts/explain_corpus.py [NAME ...]` compiles the programs of
tests/explain/corpus, all if none is named, and writes their texts, gzipped, and index.json into its
folder data/. What was compiled lies in the cache, so that it can be stopped and started again.
"""

import gzip
import json
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from explain_programs import Made, placeless

from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import compile_ahead, target_of
from shardwise.sharding import Mesh

CORPUS = Path(__file__).resolve().parents[1] / "tests/explain/corpus"
sys.path.append(str(CORPUS))

ROWS: dict[str, Any] = {
    name: row
    for name, row in tomllib.loads((CORPUS / "corpus.toml").read_text()).items()
    if "compiled" not in row  # elsewhere
}
MORE = ("attention", "training", "serving", "exchanges", "apart", "wholes")
BUFFERS = 20


def mesh_of(name: str, faulty: bool) -> Mesh:
    """The mesh of a program; some are cured by another one."""
    row = ROWS[name]
    return Mesh.parse(row["mesh"] if faulty else row.get("cured_mesh", row["mesh"]))


def build(devices: list[Any], name: str, faulty: bool) -> Made:
    """One program on the devices of its row, which are in the order of the mesh."""
    programs = import_module("programs")  # of the corpus, as the others
    for more in MORE:
        import_module(more)
    axes = mesh_of(name, faulty)
    mesh = jax.sharding.Mesh(
        np.array(devices, dtype=object).reshape(tuple(axes.values())), tuple(axes)
    )
    function, arguments, options = programs.PROGRAMS[name](programs.Arrays(mesh), faulty)
    return Made(jax.jit(function, **options), tuple(arguments), mesh)


def compiled(name: str, faulty: bool) -> Any:
    """A program of the corpus, compiled for the chips of its row."""
    row = ROWS[name]
    piece = parse_slice(row["on"])
    target = target_of(piece, mesh_coordinates(piece, mesh_of(name, faulty)))
    return compile_ahead(target, "explain_corpus:build", {"name": name, "faulty": faulty})


def kept(made: Any) -> dict[str, Any]:
    """What the index keeps beside the text of a program."""
    buffers = [
        {"name": b.name, "kind": b.kind, "bytes": b.bytes, "shape": b.shape, "op": b.op}
        | {"source": placeless(b.source)}
        for b in made.buffers[:BUFFERS]
    ]
    return {"fits": made.fits, "buffers": buffers, "versions": dict(made.versions)}


def main(names: list[str]) -> None:
    path = CORPUS / "data/index.json"
    for name in names or ROWS:
        for faulty in (True, False) if ROWS[name].get("rule") else (False,):
            made = compiled(name, faulty)
            label = f"{name}.{'fault' if faulty else 'twin'}"
            with gzip.GzipFile(path.parent / f"{label}.hlo.gz", "wb", mtime=0) as file:
                file.write(placeless(made.hlo).encode())
            index = json.loads(path.read_text()) if path.is_file() else {}
            index[label] = kept(made)
            print(label, made.fits, f"{made.seconds['compile']:.1f} s", flush=True)
            path.write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
