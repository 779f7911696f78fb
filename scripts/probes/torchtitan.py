"""Run by check_exports.py in TorchTitan's environment: its ConfigManager takes every module, and
its model is built on the meta device."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torchtitan.config import ConfigManager
from torchtitan.config import configs as sections


def main(source: str, target: str) -> None:
    """Every file of `source` by name: its error, or the parameters of its model."""
    sys.path.insert(0, ".")
    counted: dict[str, int] = {}
    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        name = f"plan_{key[:16]}"
        Path(f"{name}.py").write_text(text)
        try:
            found[key] = {"parameters": taken(name, counted)}
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    Path(target).write_text(json.dumps({"files": found, "flags": flags()}))


def taken(module: str, counted: dict[str, int]) -> int:
    """The parameters of the model of a module that the manager takes."""
    config = ConfigManager().parse_args(["--module", module, "--config", "plan"])
    spec = config.model_spec
    at = f"{spec.name}/{spec.flavor}"
    if at not in counted:
        with torch.device("meta"):
            model = spec.model.build()
        counted[at] = sum(p.numel() for p in model.parameters())
    importlib.invalidate_caches()
    return counted[at]


def flags() -> list[str]:
    """Fields of the sections that a plan sets."""
    known: dict[str, Any] = {
        "training": sections.TrainingConfig,
        "parallelism": sections.ParallelismConfig,
        "compile": sections.CompileConfig,
    }
    return sorted(f"{at}.{f.name}" for at, cls in known.items() for f in dataclasses.fields(cls))


if __name__ == "__main__":
    main(*sys.argv[1:3])
