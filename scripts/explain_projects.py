"""Explain the train steps of public projects as they are installed: docs/lab/explained_projects.

In an environment that has the distributions of `ROWS`, JAX, libtpu and shardwise, with the folder
of the example in flax's sources on PYTHONPATH,

    python scripts/explain_projects.py FOLDER [NAME ...]

explains the step of each row (scripts/projects) on `SLICE`, each in a process of its own, and keeps
the answer with its CPU seconds as FOLDER/NAME.json; one that lies there is not made again. The rows
of the answers that lie there are then written into docs/lab/explained_projects.json, with their
date, and the page beside it is made of that file.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardwise.units import format_seconds

HERE = Path(__file__).resolve().parent
RECORD = HERE.parent / "docs/lab/explained_projects.json"
PAGE = RECORD.with_suffix(".md")
SLICE = "v5e:2x4"
SHELL = "from shardwise.apps.cli import main; main()"
ALONE = ("--no-cache", "--json", "--timeout", "3000")
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectStep:
    """A train step of a project: the distribution that has it, what is trained, the mesh, and
    where its own files lie: in an installed package, or in a folder of its sources."""

    distribution: str
    step: str
    mesh: str
    package: str = ""
    folder: str = ""

    def command(self, name: str) -> list[str]:
        """What follows `shardwise`."""
        own = ["--package", self.package] if self.package else []
        step = [f"{name}_step:step", "--args", f"{name}_step:args"]
        return ["explain", *step, "--on", SLICE, "--mesh", self.mesh, *own]

    def owns(self, where: str) -> bool:
        """Whether a place is a line of the project."""
        return ".py:" in where and f"{self.package or self.folder}/" in where

    def seen(self, where: str) -> str:
        """A place without the path that leads to the project's folder."""
        _, folder, after = where.partition(f"{self.folder}/")
        return folder + after if self.folder and folder else where


ROWS = {
    "maxtext": ProjectStep(
        distribution="maxtext",
        step="`train_step` of `maxtext.trainers.pre_train.train`, 16 layers of 2048, FSDP",
        mesh="fsdp=8",
        package="maxtext",
    ),
    "gemma": ProjectStep(
        distribution="flax",
        step="`nnx_train_step` of flax's examples/gemma, Gemma 3 270M with 2 layers",
        mesh="fsdp=4,tp=2",
        folder="examples/gemma",
    ),
    "tunix": ProjectStep(
        distribution="google-tunix",
        step="`PeftTrainer._train_step`, Llama 3.2 1B with 2 layers, all parameters trained",
        mesh="fsdp=4,tp=2",
        package="tunix",
    ),
    "levanter": ProjectStep(
        distribution="levanter",
        step="`Trainer._train_step`, a Llama of 16 layers of 2048",
        mesh="data=4,model=2",
        package="levanter",
    ),
}
HEAD = """# Train steps of public projects, explained

`shardwise explain` on the train steps of projects as pip installs them (flax's example from flax's
sources of that version), each compiled for {slice} without a TPU. Nothing of them is copied or
changed: a file of some 50 lines in `scripts/projects` makes the abstract arguments of each and
names its step. Put yours in its place. There, with the project and shardwise installed:

```sh
{commands}
```

`--package` names the installed project whose lines are told as yours. CPU seconds are those of the
whole command, nearly all of them XLA's. *Explained* is the share of the time above the ops' floors
that has a cause and a place; *at its lines* is the share of the step that stands at lines of the
project's own files, of the 30 dearest lines. The rest is of
libraries that it calls (levanter calls haliax). Versions are the newest that this JAX takes.

| project | step | CPU | step takes | explained | at its lines |
|---|---|---|---|---|---|
"""
TAIL = """
What it finds, the dearest first:

| project | finding | of the step | at |
|---|---|---|---|
{found}

Written by `scripts/explain_projects.py`; explained on {dates}, with JAX {jax} and libtpu {libtpu}.
"""


def explained(name: str) -> dict[str, Any]:
    """The answer of `shardwise explain`, and its CPU seconds, the compiling process's too."""
    around = {**os.environ, "PYTHONPATH": f"{HERE / 'projects'}:{os.environ.get('PYTHONPATH', '')}"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(
        [sys.executable, "-c", SHELL, *ROWS[name].command(name), *ALONE],
        env=around,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not out.stdout.startswith("{"):
        raise SystemExit(f"{name}: {out.stderr.strip()[-600:]}")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_seconds": round(spent, 1), "answer": json.loads(out.stdout)}


def row(name: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded: of the step above its floor the share with a cause, and the findings."""
    of = ROWS[name]
    found = kept["answer"]["result"]
    step = found["step_seconds"]["expected"]
    above = step - found["floor_seconds"]
    unknown = sum(one["seconds"] for one in found["unknown"])
    own = sum(line["seconds"] for line in found["lines"] if of.owns(line["where"]))
    return {
        "date": date.today().isoformat(),
        "project": of.distribution,
        "version": version(of.distribution),
        "jax": version("jax"),
        "libtpu": version("libtpu"),
        "slice": SLICE,
        "mesh": of.mesh,
        "cpu_seconds": kept["cpu_seconds"],
        "step_seconds": step,
        "floor_seconds": found["floor_seconds"],
        "unknown_seconds": unknown,
        "explained": round(1 - unknown / above, 4) if above > 0 else 1.0,
        "at_its_lines": round(own / step, 4),
        "findings": [
            {
                "rule": f["rule"],
                "where": of.seen(f["where"]),
                "share": round(f["seconds"] / step, 4),
            }
            for f in found["findings"]
        ],
    }


def page(record: Mapping[str, Mapping[str, Any]]) -> str:
    """The page that is made of the record."""
    commands = "\n".join(" ".join(("shardwise", *ROWS[name].command(name))) for name in record)
    dates, jax, libtpu = (
        ", ".join(sorted({each[key] for each in record.values()}))
        for key in ("date", "jax", "libtpu")
    )
    lines = [
        f"| {r['project']} {r['version']} | {ROWS[name].step}, {r['mesh']} | "
        f"{r['cpu_seconds']:.0f} s | {format_seconds(r['step_seconds'])} | "
        f"{100 * r['explained']:.0f} % | {100 * r['at_its_lines']:.0f} % |"
        for name, r in record.items()
    ]
    found = "\n".join(line for name in record for line in _found(record[name]))
    head = HEAD.format(slice=SLICE, commands=commands)
    return (
        head
        + "\n".join(lines)
        + "\n"
        + TAIL.format(found=found, dates=dates, jax=jax, libtpu=libtpu)
    )


def _found(r: Mapping[str, Any]) -> Iterator[str]:
    """The dearest findings of a project."""
    for f in r["findings"][:SHOWN]:
        share = f"{100 * f['share']:.1f} %" if f["share"] else "memory"
        yield f"| {r['project']} | {f['rule']} | {share} | `{f['where']}` |"
    if not r["findings"]:
        yield f"| {r['project']} | none of 1 % of the step | | |"


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    for name in names or ROWS:
        answer = folder / f"{name}.json"
        if not answer.is_file():
            answer.write_text(json.dumps(explained(name)))
        record[name] = row(name, json.loads(answer.read_text()))
        record = {each: record[each] for each in ROWS if each in record}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        PAGE.write_text(page(record))
        print(name, f"{record[name]['explained']:.1%}", f"{record[name]['cpu_seconds']} s of CPU")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
