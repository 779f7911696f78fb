#!/usr/bin/env python3
"""Hand the exported files to the programs' own parsers: docs/exports_checked.json.

    scripts/check_exports.py maxtext|torchtitan|megatron [--keep FOLDER]

One command makes a throwaway environment (2 to 4 GB, deleted afterwards; FOLDER keeps it or is one
that was kept), installs the framework there, and passes it the files of docs/exports.json: MaxText
its pyconfig, TorchTitan its ConfigManager, Megatron-LM its argument parser with `validate_args`.
Where the model builder runs without devices, the parameters of every model are counted and compared
with ours. The record names the version, the day and each file by its hash; the flags that the
program knows go to src/shardwise/plans/data/software/flags.json. CI reads the records alone.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from exports import CHECKED, DOCS, TABLE, read_plan, text_of

from shardwise.models import load_model, params_total

FLAGS = DOCS.parent / "src/shardwise/plans/data/software/flags.json"
PROBES = Path(__file__).with_name("probes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What is installed, with which Python, and how the probe of `scripts/probes` is called."""

    version: str
    python: str
    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()
    note: str = ""


FRAMEWORKS: Mapping[str, Framework] = {
    "maxtext": Framework(
        version="0.2.5",
        python="python3.12",
        packages=(
            *("jax", "flax", "omegaconf", "pydantic", "absl-py", "packaging", "transformers"),
            *("sentencepiece", "grain", "qwix", "drjax", "aqtp", "tensorboardx", "pathwaysutils"),
            *("jinja2", "tabulate", "datasets", "jaxtyping", "pillow", "opencv-python-headless"),
            *("tensorflow-cpu", "tokamax", "tiktoken", "sympy"),
        ),
        bare=("maxtext==0.2.5",),
        note="pyconfig.initialize with the plan's topology, then the model with abstract arrays",
    ),
    "torchtitan": Framework(
        version="0.3.0",
        python="python3.11",
        packages=("torch", "triton", "torchtitan==0.3.0"),
        note="ConfigManager, then the model on the meta device",
    ),
    "megatron": Framework(
        version="0.19.2",
        python="python3.11",
        packages=("torch", "triton", "numpy", "packaging", "typing-extensions"),
        note="its parser and validate_args from the wheel for Python 3.12, run on 3.11 with "
        "typing.override from typing_extensions, then GPTModel on the meta device",
    ),
}


def main() -> int:
    """Make the environment, run the probe, write both records."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--keep", type=Path, help="folder of the environment, kept")
    asked = parser.parse_args()
    name = asked.framework
    jobs = {digest(text): (text, row) for text, row in files(name)}
    with tempfile.TemporaryDirectory() as made:
        folder = asked.keep or Path(made)
        python = environment(FRAMEWORKS[name], folder)
        found = probed(python, name, {key: text for key, (text, _) in jobs.items()}, folder)
    record: dict[str, Any] = {"version": FRAMEWORKS[name].version, "date": date.today().isoformat()}
    record["how"] = FRAMEWORKS[name].note
    record["files"] = {key: said(found["files"][key], row) for key, (_, row) in jobs.items()}
    written(CHECKED, name, record)
    written(FLAGS, name, {k: record[k] for k in ("version", "date")} | {"flags": found["flags"]})
    bad = [f"{r['model']} on {r['slice']}: {r['error']}" for r in record["files"].values()
           if not r["accepted"]]  # fmt: skip
    wrong = [
        r["model"] for r in record["files"].values() if r["parameters"] not in (None, r["ours"])
    ]
    print(f"{name}: {len(jobs) - len(bad)} of {len(jobs)} files accepted", *bad, sep="\n  ")
    print(f"parameters differ: {', '.join(sorted(set(wrong))) or 'nowhere'}")
    return 1 if bad or wrong else 0


def files(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The files of the table for one program."""
    rows = json.loads(TABLE.read_text())["rows"]
    return [(text_of(read_plan(row)), row) for row in rows if row.get("software") == name]


def digest(text: str) -> str:
    """By what a file is named."""
    return hashlib.sha256(text.encode()).hexdigest()


def environment(framework: Framework, folder: Path) -> Path:
    """The Python of an environment with the framework, made where there is none."""
    python = folder / "env" / "bin" / "python"
    if not python.exists():
        run([framework.python, "-m", "venv", str(folder / "env")])
        run([str(python), "-m", "pip", "install", "-q", *framework.packages])
        if framework.bare:
            run([str(python), "-m", "pip", "install", "-q", "--no-deps", *framework.bare])
    return python


def probed(python: Path, name: str, texts: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """What the probe says of every file, in a process of the environment."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        (work / "files.json").write_text(json.dumps(texts))
        probe = PROBES / f"{name}.py"
        run([str(python), "-P", str(probe), "files.json", "found.json", str(folder)], work)
        return json.loads((work / "found.json").read_text())


def run(words: list[str], place: Path | None = None) -> None:
    """A command whose failure ends this one."""
    subprocess.run(words, cwd=place, check=True)


def said(found: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The record of one file."""
    return {
        "model": row["model"],
        "slice": row["slice"],
        "accepted": not found.get("error"),
        "error": found.get("error", ""),
        "parameters": found.get("parameters"),
        "builder": found.get("builder", ""),
        "ours": params_total(load_model(row["model"])),
    }


def written(path: Path, name: str, record: Mapping[str, Any]) -> None:
    """One framework's record among the others in a file."""
    doc = json.loads(path.read_text()) if path.exists() else {}
    doc[name] = record
    path.write_text(json.dumps(dict(sorted(doc.items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
