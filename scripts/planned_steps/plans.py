"""Small plans, one or more of every strategy, whose compiled steps are held against the plan.

Eight devices, two layers, even dims: all that a strategy moves shows, and a compile takes seconds.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

from shardwise.models import ModelConfig, from_hf
from shardwise.plans.identity import model_hash
from shardwise.plans.train import TrainPlan

SEQUENCES, TOKENS = 16, 64
DENSE: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": 1280,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
MOE: Mapping[str, Any] = {
    **DENSE,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
RING, ULYSSES = {"context_method": "ring"}, {"context_method": "ulysses"}
RAGGED = {"expert_dispatch": "ragged"}

PLANS: Mapping[str, tuple[str, Mapping[str, int], Mapping[str, Any]]] = {
    "DP": ("dense", {"data": 8}, {"zero": 0}),
    "ZeRO-1": ("dense", {"data": 8}, {"zero": 1}),
    "ZeRO-2, 2 microbatches": ("dense", {"data": 8}, {"zero": 2, "microbatches": 2}),
    "FSDP": ("dense", {"fsdp": 8}, {}),
    "FSDP, kept gathered": ("dense", {"fsdp": 8}, {"weight_gather": "per_microbatch"}),
    "FSDP, no remat": ("dense", {"fsdp": 8}, {"remat": "none"}),
    "TP": ("dense", {"tensor": 4}, {"sequence_parallel": False}),
    "TP + SP": ("dense", {"tensor": 4}, {}),
    "TP + SP, fewer KV heads": ("dense", {"tensor": 8}, {}),
    "FSDP + TP": ("dense", {"fsdp": 4, "tensor": 2}, {}),
    "HSDP": ("dense", {"replica": 2, "fsdp": 4}, {}),
    "DP + FSDP + TP, 2 microbatches": (
        "dense",
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"microbatches": 2},
    ),
    "FSDP + CP ring": ("dense", {"fsdp": 2, "context": 4}, RING),
    "FSDP + CP all-gather": ("dense", {"fsdp": 2, "context": 4}, {}),
    "FSDP + CP Ulysses": ("dense", {"fsdp": 2, "context": 4}, ULYSSES),
    "1F1B + FSDP + TP": (
        "dense",
        {"stage": 2, "fsdp": 2, "tensor": 2},
        {"microbatches": 4},
    ),
    "ZB-H1 + FSDP + TP": (
        "dense",
        {"stage": 2, "fsdp": 2, "tensor": 2},
        {"microbatches": 4, "pipeline_schedule": "zb_h1"},
    ),
    "1F1B + DP": ("dense", {"stage": 2, "data": 4}, {"zero": 1, "microbatches": 4}),
    "EP ragged": ("moe", {"expert": 8}, RAGGED),
    "FSDP + EP, capacity": ("moe", {"fsdp": 2, "expert": 4}, {}),
    "EP over TP, ragged": (
        "moe",
        {"expert": 4, "tensor": 2},
        {**RAGGED, "expert_over_tensor": True},
    ),
    "EP + TP, ragged": ("moe", {"expert": 4, "tensor": 2}, RAGGED),
}
"""Name -> (model, mesh, choices); all else is the same for all."""


@lru_cache
def small_model(name: str) -> ModelConfig:
    """The "dense" or the "moe" model, as from a Hugging Face config."""
    return from_hf(dict({"dense": DENSE, "moe": MOE}[name]), name=f"small-{name}")


def small_plans() -> dict[str, tuple[TrainPlan, ModelConfig]]:
    """Every plan of the table, in bf16 with f32 moments and master copy, with block remat
    unless told otherwise."""
    return {name: _plan(*row) for name, row in PLANS.items()}


def _plan(
    model: str, mesh: Mapping[str, int], choices: Mapping[str, Any]
) -> tuple[TrainPlan, ModelConfig]:
    cfg, devices, stages = small_model(model), prod(mesh.values()), mesh.get("stage", 1)
    plan = TrainPlan(
        model=cfg.name,
        model_hash=model_hash(cfg),
        slice="v5e:2x4",
        mesh=dict(mesh),
        box=(devices,),
        sequence_length=TOKENS,
        layers_per_stage=(cfg.layers // stages,) * stages,
        global_batch_sequences=SEQUENCES,
        **{"microbatches": 1, **choices},
    )
    return plan, cfg
