"""Shared by `prove_training` and `prove_stops`: a tiny model, and whether two runs are the same."""

import argparse
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from made import made

from shardwise.models import load_model
from shardwise.plans import TrainPlan, model_hash, save_plan
from shardwise.plans.train import TrainDtypes
from shardwise.runtime.trainer import read_metrics

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 257,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
"""A Llama over bytes; its sizes are the caller's."""
COMMAND = (sys.executable, "-P", "-c", "from shardwise.apps.cli import main; main()", "train")


def head() -> dict[str, Any]:
    """How the document of a proof begins."""
    found = made(("jax", "jaxlib", "optax"))
    found["versions"]["python"] = sys.version.split()[0]
    return {**found, "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, Linux"}


def write_plan(path: Path, model: Path, config: dict[str, Any], **choices: Any) -> None:
    """The model's config, and a plan in float32 that trains it without microbatches."""
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    cfg = load_model(str(model))
    dtypes = TrainDtypes(param="f32", compute="f32", grad="f32", master="none", moments="f32")
    plan = TrainPlan(
        model=str(model),
        model_hash=model_hash(cfg),
        microbatches=1,
        layers_per_stage=(cfg.layers,),
        remat="none",
        dtypes=dtypes,
        **choices,
    )
    save_plan(plan, path)


def command(plan: Path, flags: dict[str, Any]) -> list[str]:
    """`shardwise train`, which goes on where it was stopped."""
    return [*COMMAND, str(plan), "--resume", *(str(x) for pair in flags.items() for x in pair)]


def last_step(out: Path) -> int:
    """The last step that a run reported."""
    try:
        found = read_metrics(out / "metrics.jsonl")
    except OSError:
        return 0
    return found[-1]["step"] if found else 0


def sameness(whole: Path, other: Path, steps: int) -> dict[str, bool]:
    """Whether two runs agree in every loss, and in every bit of their last checkpoint."""
    a, b = (
        [(m["step"], m["loss"], m["grad_norm"]) for m in read_metrics(out / "metrics.jsonl")]
        for out in (whole, other)
    )
    x, y = (
        {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in (out / "checkpoints" / f"step-{steps:08}").glob("*.safetensors")
        }
        for out in (whole, other)
    )
    return {"every_loss": a == b and len(a) == steps, "last_checkpoint": x == y and bool(x)}


def finish(proof: dict[str, Any], options: argparse.Namespace) -> int:
    """Print a proof, and write it unless it was only to be checked; the exit code."""
    print(text := json.dumps(proof, indent=1))
    if not options.check:
        options.out.write_text(text + "\n")
    return 0 if proof["passed"] else 1
