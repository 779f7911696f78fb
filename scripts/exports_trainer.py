"""Plans for transformers' Trainer, whose files check_exports.py hands to TRL's, accelerate's,
axolotl's and DeepSpeed's own parsers: every way to run one, of three models."""

from collections.abc import Iterator
from typing import Any

from exports_serving import stripped

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import export_plan
from shardwise.plans import TrainDtypes, TrainPlan, model_hash

MODELS = ("llama-3-8b", "qwen3-32b", "qwen3-30b-a3b")
TAKEN_BY = {"trl": ("trl", "accelerate", "deepspeed"), "axolotl": ("axolotl",)}
TAKEN_BY |= {"deepspeed": ("deepspeed",)}
"""Targets whose files a program's probe reads."""
MIXED = TrainDtypes(param="f32", compute="bf16", grad="f32", master="none")
ONE = TrainDtypes(grad="bf16", master="none", moments="bf16")
FOUR = {"quantize": "nf4", "lora_targets": ("q", "v")}
WAYS: tuple[dict[str, Any], ...] = (
    {"mesh": {"data": 16}, "dtypes": ONE, "lora_rank": 16, "zero": 0, "optimizer": "adam8bit"},
    {"mesh": {"data": 16}, "dtypes": ONE, "lora_rank": 64, "zero": 0, **FOUR},
    {"mesh": {"fsdp": 16}, "dtypes": MIXED, "gradient_reduce": "per_step", "fused_loss": True},
    {"mesh": {"fsdp": 16}, "dtypes": MIXED, "gradient_reduce": "per_step", "optimizer": "adam8bit"},
    {"mesh": {"data": 2, "fsdp": 8}, "dtypes": MIXED, "gradient_reduce": "per_step", "zero": 0},
    {"mesh": {"fsdp": 16}, "dtypes": TrainDtypes(), "offload_optimizer": True},
    {"mesh": {"data": 16}, "dtypes": TrainDtypes(), "zero": 2, "remat": "none"},
    {"mesh": {"data": 16}, "dtypes": TrainDtypes(), "zero": 1, "remat": "offload"},
)


def texts(program: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files that a program's probe reads, without our notes, each with its model and slice."""
    for model in MODELS:
        cfg, piece = load_model(model), parse_slice("2*h100:8")
        for way in WAYS:
            plan = _plan(model, cfg.layers, model_hash(cfg), **way)
            for target in TAKEN_BY[program]:
                try:
                    text = export_plan(plan, cfg, piece, target)
                except BadRequest:
                    continue  # DeepSpeed's alone
                yield stripped(text), {"model": model, "slice": plan.slice}


def _plan(model: str, layers: int, known_by: str, **way: Any) -> TrainPlan:
    return TrainPlan(
        model=model,
        model_hash=known_by,
        slice="2*h100:8",
        slices=2,
        box=(8,),
        global_batch_sequences=128,
        sequence_length=4096,
        microbatches=4,
        layers_per_stage=(layers,),
        stack="fsdp",
        expert_dispatch="ragged",
        attention_kernel="fa2",
        **way,
    )
