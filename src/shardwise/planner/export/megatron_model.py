"""The arguments of Megatron-LM that describe a model: its shape and its forward pass.

Names as in megatron/training/arguments.py of megatron-core 0.19.2; `features.py` of
`plans/software` says which models these arguments describe. Where Megatron's default is another
model's (layer norms, learned positions, biases, gelu, tied weights), the argument is written out.
"""

from typing import Any

from shardwise.models import ModelConfig
from shardwise.models.numerics import Numerics, Rope, Routing
from shardwise.models.specs import Attention, LatentAttention, Mlp, Moe

SWITCH = ""


def model_arguments(cfg: ModelConfig) -> dict[str, Any]:
    """Every argument that the model sets; a switch has the value ""."""
    values: dict[str, Any] = {"--num-layers": cfg.layers, "--hidden-size": cfg.d_model}
    values |= {"--attention-dropout": 0, "--hidden-dropout": 0}
    values |= _mixer(cfg) | _mlps(cfg)
    if cfg.numerics is not None:
        values |= _numbers(cfg, cfg.numerics)
    if not cfg.tied_embeddings:
        values["--untie-embeddings-and-output-weights"] = SWITCH
    return values | {"--vocab-size": cfg.vocabulary, "--make-vocab-size-divisible-by": 1}


def _mixer(cfg: ModelConfig) -> dict[str, Any]:
    mixer = cfg.groups[-1].mixer
    assert isinstance(mixer, Attention | LatentAttention), "Megatron's row builds no other mixer"
    values: dict[str, Any] = {"--num-attention-heads": mixer.heads}
    if isinstance(mixer, LatentAttention):
        return values | _latent(mixer)
    values["--kv-channels"] = mixer.head_dim
    if mixer.kv_heads < mixer.heads:
        values |= {"--group-query-attention": SWITCH, "--num-query-groups": mixer.kv_heads}
    if not mixer.o_bias:
        values["--disable-bias-linear"] = SWITCH
        if mixer.q_bias:
            values["--add-qkv-bias"] = SWITCH
    if mixer.qk_norm != "none":
        values["--qk-layernorm"] = SWITCH
    return values


def _latent(mixer: LatentAttention) -> dict[str, Any]:
    values: dict[str, Any] = {"--multi-latent-attention": SWITCH}
    if mixer.q_lora_rank:
        values["--q-lora-rank"] = mixer.q_lora_rank
    return values | {
        "--kv-lora-rank": mixer.kv_lora_rank,
        "--qk-head-dim": mixer.nope_head_dim,
        "--qk-pos-emb-head-dim": mixer.rope_head_dim,
        "--v-head-dim": mixer.v_head_dim,
        "--qk-layernorm": SWITCH,  # the norms of the latents
        "--disable-bias-linear": SWITCH,
    }


def _mlps(cfg: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for mlp in (group.mlp for group in cfg.groups):
        if isinstance(mlp, Mlp):
            values["--ffn-hidden-size"] = mlp.d_ff
        if isinstance(mlp, Mlp | Moe) and mlp.gated:
            values["--swiglu"] = SWITCH
    moe = next((g.mlp for g in cfg.groups if isinstance(g.mlp, Moe)), None)
    return values if moe is None else values | _experts(cfg, moe, values)


def _experts(cfg: ModelConfig, moe: Moe, dense: dict[str, Any]) -> dict[str, Any]:
    pattern = ",".join(str(int(isinstance(cfg.layer(i).mlp, Moe))) for i in range(cfg.layers))
    values: dict[str, Any] = {
        "--ffn-hidden-size": dense.get("--ffn-hidden-size", moe.d_ff),
        "--num-experts": moe.experts,
        "--moe-router-topk": moe.experts_per_token,
        "--moe-ffn-hidden-size": moe.d_ff,
        "--moe-layer-freq": f"[{pattern}]",
    }
    if moe.shared_d_ff:
        values["--moe-shared-expert-intermediate-size"] = moe.shared_d_ff
    if moe.shared_gate:
        values["--moe-shared-expert-gate"] = SWITCH
    return values


def _numbers(cfg: ModelConfig, numbers: Numerics) -> dict[str, Any]:
    values: dict[str, Any] = {
        "--normalization": "RMSNorm" if numbers.norm == "rms" else "LayerNorm",
        "--norm-epsilon": numbers.norm_eps,
    }
    rope = numbers.rope(0)
    values |= (
        {"--position-embedding-type": "learned_absolute"} if rope is None else _rotation(cfg, rope)
    )
    return values | (_routing(numbers.routing) if cfg.has_experts else {})


def _rotation(cfg: ModelConfig, rope: Rope) -> dict[str, Any]:
    values: dict[str, Any] = {
        "--position-embedding-type": "rope",
        "--rotary-base": round(rope.theta),
    }
    mixer = cfg.groups[-1].mixer
    if isinstance(mixer, Attention) and rope.dim != mixer.head_dim:
        values["--rotary-percent"] = rope.dim / mixer.head_dim
    if rope.scaling == "llama3":
        values |= {"--use-rope-scaling": SWITCH, "--rope-scaling-factor": rope.factor}
    if isinstance(mixer, LatentAttention):
        yarn = rope.scaling == "yarn"
        values["--rope-type"] = "yarn" if yarn else "rope"
        if yarn:
            values["--rotary-scaling-factor"] = rope.factor
    return values


def _routing(routing: Routing) -> dict[str, Any]:
    """Scores are normalised over the chosen experts where they are taken after the choice."""
    sigmoid = routing.scoring == "sigmoid"
    values: dict[str, Any] = {"--moe-router-score-function": "sigmoid" if sigmoid else "softmax"}
    if not sigmoid and not routing.normalise and routing.scoring == "softmax":
        values["--moe-router-pre-softmax"] = SWITCH
    if routing.scale != 1:
        values["--moe-router-topk-scaling-factor"] = routing.scale
    if routing.groups > 1:
        values |= {
            "--moe-router-num-groups": routing.groups,
            "--moe-router-group-topk": routing.top_groups,
        }
    if routing.correction:
        values["--moe-router-enable-expert-bias"] = SWITCH
    return values
