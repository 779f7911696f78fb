"""What `explain --quick` sees beside what libtpu compiled: docs/lab/explain_quick.md.

`PYTHONPATH=scripts:tests/explain/quick python scripts/explain_quick.py` partitions the 7B step of
tests/explain/quick and every program of tests/explain/corpus whose TPU text is kept, keeps their
texts in tests/explain/quick/data, and writes what both say into the table. No program is compiled
for a chip.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from explain_corpus import CORPUS, ROWS
from explain_programs import placeless

from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import Limits, compile_ahead, target_of
from shardwise.profiler.explain import Explanation, explain_program
from shardwise.sharding import Mesh, wire_bytes
from shardwise.units import format_bytes
from shardwise.work import Collective, Op

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests/explain/quick/data"
PAGE = ROOT / "docs/lab/explain_quick.md"
HEAD = """# What the partitioner alone says

`shardwise explain --quick` partitions a program for virtual CPU devices and does not compile it.
Here is what it says of the corpus of faults (tests/explain/corpus), beside what libtpu compiled:
the bytes that a device sends over the links of each mesh axis, and the findings. A TPU's compiler
may cut a gather or a scatter into permutes beside a product, which sends the same bytes; findings
of fusion, layouts, overlap and memory need the compile. Written by `scripts/explain_quick.py`.

| program | axis | partitioned | compiled | findings, partitioned | findings, compiled |
|---|---|---|---|---|---|
"""


def partitioned(builder: str, arguments: dict[str, Any], on: str, mesh: Mesh) -> str:
    """The text of a program behind the partitioner."""
    piece = parse_slice(on)
    target = target_of(piece, mesh_coordinates(piece, mesh))
    return placeless(compile_ahead(target, builder, arguments, limits=Limits(partition=True)).hlo)


def sent(e: Explanation, mesh: Mesh) -> dict[str, float]:
    """Bytes that a device sends in a step, by the axes."""
    found: dict[str, float] = {}
    for c in e.collectives:
        wire = Collective(kind=c.kind, axes=c.axes, bytes=c.bytes)  # type: ignore[arg-type]
        op = Op(id="", name="", phase="", component="", op_class="collective", collective=wire)
        axes = ", ".join(c.axes)
        found[axes] = found.get(axes, 0.0) + float(wire_bytes(op, dict(mesh)))
    return found


def rows(name: str, kind: str, texts: dict[str, str]) -> Iterator[str]:
    """The lines of one program, whose partitioned text is added to `texts`."""
    row, path = ROWS[name], CORPUS / f"data/{name}.{kind}.hlo.gz"
    mesh, piece = Mesh.parse(row["mesh"]), parse_slice(row["on"])
    with gzip.open(path, "rt") as file:
        chip = explain_program(file.read(), piece, mesh)
    hlo = partitioned(
        "explain_corpus:build", {"name": name, "faulty": kind == "fault"}, row["on"], mesh
    )
    texts[f"{name}.{kind}"] = hlo
    quick = explain_program(hlo, piece, mesh, partitioned=True)
    left, right = sent(quick, mesh), sent(chip, mesh)
    rules = [", ".join(dict.fromkeys(f.rule for f in e.findings)) for e in (quick, chip)]
    for at, axes in enumerate(sorted(left.keys() | right.keys()) or [""]):
        sizes = [format_bytes(each.get(axes, 0.0)) for each in (left, right)]
        words = [f"{name}, {kind}", *rules] if at == 0 else ["", "", ""]
        yield f"| {words[0]} | {axes} | {sizes[0]} | {sizes[1]} | {words[1]} | {words[2]} |"


def keep(name: str, text: str) -> None:
    with gzip.GzipFile(KEPT / name, "wb", mtime=0) as file:
        file.write(text.encode())


def main(names: list[str]) -> None:
    of_7b = json.loads((KEPT / "train_7b.json").read_text())
    mesh = Mesh.parse(of_7b["mesh"])
    words = {"function": "train_7b:train", "args": "train_7b:args", "mesh": dict(mesh)}
    hlo = partitioned("shardwise.profiler.ahead.user:user_program", words, of_7b["on"], mesh)
    keep("train_7b.hlo.gz", hlo)
    lines: list[str] = []
    texts: dict[str, str] = {}
    for name in names or ROWS:
        for kind in ("fault", "twin"):
            if (CORPUS / f"data/{name}.{kind}.hlo.gz").is_file():
                lines += rows(name, kind, texts)
                print(lines[-1], flush=True)
    keep("corpus.json.gz", json.dumps(texts))
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
