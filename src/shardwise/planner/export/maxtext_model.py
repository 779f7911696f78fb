"""The flags of MaxText that describe a model: every number of its shape and of its forward pass.

Written as in src/maxtext/configs/models/*.yml of MaxText 0.2.5; `features.py` of `plans/software`
says which models these flags describe.
"""

from typing import Any

from shardwise.models import ModelConfig
from shardwise.models.numerics import Numerics, Rope, Routing
from shardwise.models.specs import Attention, LatentAttention, Mlp, Moe
from shardwise.plans.software.maxtext import decoder_block
from shardwise.plans.software.maxtext_models import named_model


def model_flags(cfg: ModelConfig) -> dict[str, Any]:
    """Every flag that the model sets, or the one that names it; of a model without known numerics,
    its shape alone."""
    if name := named_model(cfg):
        return {"model_name": name}
    values: dict[str, Any] = {
        "override_model_config": True,
        "decoder_block": decoder_block(cfg),
        "base_num_decoder_layers": cfg.layers,
        "base_emb_dim": cfg.d_model,
        "vocab_size": cfg.vocabulary,
        "logits_via_embedding": cfg.tied_embeddings,
        "enable_dropout": False,
    }
    values |= _mixer(cfg) | _mlps(cfg)
    if cfg.numerics is not None:
        values |= _numbers(cfg, cfg.numerics)
    return values


def _mixer(cfg: ModelConfig) -> dict[str, Any]:
    mixer = cfg.groups[-1].mixer
    if isinstance(mixer, Attention):
        return {
            "base_num_query_heads": mixer.heads,
            "base_num_kv_heads": mixer.kv_heads,
            "head_dim": mixer.head_dim,
            "attention_bias": mixer.q_bias,
            "use_qk_norm": mixer.qk_norm != "none",
        }
    assert isinstance(mixer, LatentAttention), "MaxText's row builds no other mixer"
    return {
        "attention_type": "mla",
        "base_num_query_heads": mixer.heads,
        "base_num_kv_heads": mixer.heads,
        "q_lora_rank": mixer.q_lora_rank or 0,
        "kv_lora_rank": mixer.kv_lora_rank,
        "qk_nope_head_dim": mixer.nope_head_dim,
        "qk_rope_head_dim": mixer.rope_head_dim,
        "v_head_dim": mixer.v_head_dim,
    }


def _mlps(cfg: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {"mlp_activations": '["silu","linear"]'}
    for mlp in (group.mlp for group in cfg.groups):
        if isinstance(mlp, Mlp):
            values["base_mlp_dim"] = mlp.d_ff
        if isinstance(mlp, Moe):
            values |= {
                "num_experts": mlp.experts,
                "num_experts_per_tok": mlp.experts_per_token,
                "base_moe_mlp_dim": mlp.d_ff,
                "shared_experts": mlp.shared_experts,
            }
            values.setdefault("base_mlp_dim", mlp.d_ff)
    plain = sum(isinstance(cfg.layer(i).mlp, Mlp) for i in range(cfg.layers))
    if cfg.has_experts and plain:
        values["first_num_dense_layers"] = plain
    return values


def _numbers(cfg: ModelConfig, numbers: Numerics) -> dict[str, Any]:
    values: dict[str, Any] = {
        "normalization_layer_epsilon": numbers.norm_eps,
        "normalize_embedding_logits": False,
    }
    rope = numbers.rope(0)
    if rope is not None:
        values |= _rotation(rope)
    return values | (_routing(cfg, numbers.routing) if cfg.has_experts else {})


def _rotation(rope: Rope) -> dict[str, Any]:
    values: dict[str, Any] = {"rope_max_timescale": round(rope.theta)}
    if rope.scaling == "llama3":
        values |= {"rope_type": "llama3.1", "rope_use_scale": True}
    if rope.scaling == "yarn":
        values |= {
            "rope_type": "yarn",
            "rope_factor": rope.factor,
            "beta_slow": rope.low,
            "beta_fast": rope.high,
            "original_max_position_embeddings": rope.original_context,
            "max_position_embeddings": round(rope.original_context * rope.factor),
            "rope_interleave": rope.interleaved,
            "rope_truncate": rope.truncate,
            "rope_attention_scaling": rope.attention_factor != 1.0,
        }
    return values


def _routing(cfg: ModelConfig, routing: Routing) -> dict[str, Any]:
    if not isinstance(cfg.groups[-1].mixer, LatentAttention):
        return {"norm_topk_prob": routing.normalise}
    values: dict[str, Any] = {
        "routed_score_func": routing.scoring,
        "routed_scaling_factor": routing.scale,
        "routed_bias": routing.correction,
    }
    if routing.groups > 1:
        values |= {"n_routing_groups": routing.groups, "topk_routing_group": routing.top_groups}
    return values
