"""Models that MaxText 0.2.5 builds by `model_name` alone: no flag describes their layers.

Nothing is looked up by the name of a model: the file of `model_name` must have every number of the
model, and the block that it names every feature.
"""

from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from shardwise.boundary import read_json
from shardwise.models import ModelConfig
from shardwise.models.specs import Attention, Moe
from shardwise.plans.software.features import (
    ALL_BIASES,
    CLAMPED,
    EXPERTS,
    FULL_NORM,
    OTHER_EXPERTS,
    OTHER_NORMS,
    SINKS,
    WINDOWS,
    YARN,
    features,
)

BLOCKS: Mapping[str, Collection[str]] = {
    "gpt_oss": {ALL_BIASES, CLAMPED, EXPERTS, OTHER_EXPERTS, SINKS, WINDOWS, YARN},
    "olmo3": {FULL_NORM, OTHER_NORMS, WINDOWS, YARN},
}
"""What a `decoder_block` has, as `features.py` calls it (src/maxtext/models/)."""
LAYERS_EACH = {"gemma2": 2}
"""Layers of a model that one `decoder_block` stands for, where it is more than one: here one with a
window and one without (src/maxtext/models/gemma2.py)."""
ROPE_TYPES = {"none": "default", "yarn": "yarn"}
_SNAPSHOT = Path(__file__).parents[1] / "data" / "software" / "maxtext.json"


@cache
def snapshot() -> Mapping[str, Any]:
    """What MaxText's own files say: its `models` by name, and the `topologies` that it knows."""
    return read_json(_SNAPSHOT, "the snapshot of MaxText")


@lru_cache(maxsize=64)
def named_model(cfg: ModelConfig) -> str | None:
    """The `model_name` that stands for a model, if there is one."""
    models = snapshot()["models"].items()
    return next((name for name, flags in models if _describes(flags, cfg)), None)


def _describes(flags: Mapping[str, Any], cfg: ModelConfig) -> bool:
    if not features(cfg) <= set(BLOCKS.get(flags.get("decoder_block", ""), ())):
        return False
    return all(flags.get(name) == value for name, value in _numbers(cfg).items())


def _numbers(cfg: ModelConfig) -> dict[str, Any]:
    """Every number of a model of these blocks, as its file writes it."""
    mixers = [g.mixer for g in cfg.groups if isinstance(g.mixer, Attention)]
    values: dict[str, Any] = {
        "base_num_decoder_layers": cfg.layers,
        "base_emb_dim": cfg.d_model,
        "vocab_size": cfg.vocabulary,
        "logits_via_embedding": cfg.tied_embeddings,
        "base_num_query_heads": mixers[0].heads,
        "base_num_kv_heads": mixers[0].kv_heads,
        "head_dim": mixers[0].head_dim,
        "sliding_window_size": next((m.window for m in mixers if m.window), None),
    }
    mlp = cfg.groups[0].mlp
    if isinstance(mlp, Moe):
        values |= {"num_experts": mlp.experts, "num_experts_per_tok": mlp.experts_per_token}
    rope = cfg.numerics and cfg.numerics.rope(0)
    if rope:
        values |= {"rope_type": ROPE_TYPES.get(rope.scaling), "rope_max_timescale": rope.theta}
    return values | ({"base_mlp_dim": mlp.d_ff} if mlp else {})
