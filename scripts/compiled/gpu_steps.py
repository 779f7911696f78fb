"""Steps of our trainer on one GPU as `benchmarks/gpu.py --record` measured them, one a line.

`gpu_steps.jsonl` was made on one H200 with JAX 0.11.2 on 2026-11-28. Floats were drawn at random,
token ids were zeros, and every step was waited for.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from compiled.classes import CLASSES
from shardwise.models import ModelConfig
from shardwise.models.zoo import from_hf, hf_config
from shardwise.plans import TrainPlan
from shardwise.plans.files import plan_from
from shardwise.roofline.price import ROUTED
from shardwise.work import tally

STEPS = Path(__file__).with_name("gpu_steps.jsonl")


@dataclass(frozen=True, kw_only=True)
class GpuStep:
    """A plan and its model, seconds of its step (median of the runs) and those by class."""

    name: str
    plan: TrainPlan
    cfg: ModelConfig
    seconds: float
    measured: Mapping[str, float]


def gpu_steps() -> Iterator[GpuStep]:
    """Every step of the file."""
    for line in STEPS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        case = row["case"]
        config = hf_config(case["model"])
        if case["layers"]:
            config = {**config, "num_hidden_layers": case["layers"]}
        shape = f"{case['layers'] or 'all'} layers, {case['sequences']} x {case['tokens']:,}"
        yield GpuStep(
            name=f"{case['model']}, {shape}, remat {case['remat']}",
            plan=plan_from(row["plan"], f"a step of {STEPS.name}"),
            cfg=from_hf(config, name=case["model"]),
            seconds=median(row["seconds"]),
            measured=gpu_classes(row["by"]),
        )


def gpu_classes(by: Mapping[str, float]) -> dict[str, float]:
    """Seconds by class of `CLASSES` of those by class of op and component: what no op of the
    program stands for (copies by the driver) is elementwise."""
    found = tally((_class(*key.partition(" ")[::2]), s) for key, s in by.items() if key != "step")
    return {name: found.get(name, 0.0) for name in CLASSES}


def _class(op_class: str, component: str) -> str:
    if op_class == "attention":
        return "kernel"
    if component == "optimizer":
        return "optimizer"
    if op_class == "matmul":
        return "experts" if component == ROUTED else "products"
    return "dispatch" if component == ROUTED else "elementwise"
