"""A tiny model, a plan for it and some text, for the tests of the trainer."""

import json
import os
from pathlib import Path
from typing import Any

from shardwise.models import load_model
from shardwise.plans import TrainPlan, model_hash
from shardwise.plans.train import TrainDtypes
from shardwise.runtime.trainer import Settings, TrainRun

F32 = TrainDtypes(param="f32", compute="f32", grad="f32", master="none", moments="f32")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
QUICK = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
}
"""The environment of a program in a process of its own, which then compiles in a quarter of the
time."""
PROGRAMS = str(Path(os.environ["XDG_CACHE_HOME"]) / "programs")
"""Where compiled steps are kept for the whole run of the tests, for all of its processes."""
TRAINER = QUICK | {
    "JAX_COMPILATION_CACHE_DIR": PROGRAMS,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""`QUICK` for a trainer: the same few tiny steps are compiled once."""
BOXES = {1: ("v5e:1x1", (1, 1)), 2: ("v5e:2x2", (1, 2)), 4: ("v5e:2x2", (2, 2))}


def make_plan(folder: Path, mesh: dict[str, int] | None = None, **changes: Any) -> TrainPlan:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG | changes.pop("config", {})))
    cfg = load_model(str(model))
    mesh, devices = mesh or {}, 1
    for degree in mesh.values():
        devices *= degree
    values: dict[str, Any] = {
        "model": str(model),
        "model_hash": model_hash(cfg),
        "slice": BOXES[devices][0],
        "mesh": mesh,
        "box": BOXES[devices][1],
        "global_batch_sequences": 8,
        "sequence_length": 32,
        "microbatches": 1,
        "layers_per_stage": (2,),
        "remat": "none",
        "dtypes": F32,
    }
    return TrainPlan(**values | changes)


def make_text(folder: Path) -> Path:
    data = folder / "text"
    (data / "deep").mkdir(parents=True, exist_ok=True)
    for i in range(6):
        words = " ".join(f"word{(i * 7 + j * j) % 23}" for j in range(120))
        (data / ("deep" if i % 2 else ".") / f"file{i}.txt").write_text(words)
    return data


def make_run(folder: Path, plan: TrainPlan | None = None, **changes: Any) -> TrainRun:
    plan = plan or make_plan(folder)
    values: dict[str, Any] = {
        "plan": plan,
        "cfg": load_model(plan.model),
        "settings": Settings(steps=6, lr=3e-3, warmup=2),
        "data": make_text(folder),
        "out": folder / "out",
    }
    return TrainRun(**values | changes)
