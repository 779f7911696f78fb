"""What a model has beyond a plain stack of attention and MLP, as phrases.

A program for training says which of them its flags describe (`SoftwareRow.builds`); a model with
any other is one that it cannot build.
"""

from collections.abc import Iterator
from functools import lru_cache

from shardwise.models import ModelConfig
from shardwise.models.numerics import Numerics
from shardwise.models.specs import Attention, LatentAttention, Layer, Mlp, Moe

EXPERTS, SHARED, SHARED_GATE = "experts", "shared experts", "gates of shared experts"
LATENT, MIXED = "latent attention", "layers with and without experts"
LEADING = "leading layers without experts"
QKV_BIAS, ALL_BIASES = "biases of queries, keys and values", "biases of all matmuls"
HEAD_NORM = "norms of queries and keys per head"
UNGATED, LAYER_NORM, GELU = "MLPs without a gate", "layer norms", "gelu"
LEARNED, PARTIAL = "learned positions", "rotation of a part of a head"
SINKS, WINDOWS = "attention sinks", "attention that sees a part of the tokens"
FULL_NORM = "norms of queries and keys over all heads"
OTHER_NORMS = "norms elsewhere than before attention and MLP"
OTHER_EXPERTS, CLAMPED = "experts of an unusual kind", "the activation clamped_silu"
LLAMA3, YARN = "llama3 rope scaling", "yarn rope scaling"
LLAMA3_FACTOR = "llama3 rope scaling by another factor than 8"


USUAL_FACTOR = 8.0
"""Of Llama 3.1."""


@lru_cache(maxsize=64)
def features(cfg: ModelConfig) -> frozenset[str]:
    """All of a model."""
    found = {phrase for layer in cfg.groups for phrase in _of_layer(layer)}
    return frozenset(found | set(_of_stack(cfg)) | set(_of_numbers(cfg)))


def _of_layer(layer: Layer) -> Iterator[str]:
    mixer, mlp = layer.mixer, layer.mlp
    if isinstance(mixer, Attention):
        yield from _of_attention(mixer, mlp)
    elif isinstance(mixer, LatentAttention):
        yield LATENT
        if mixer.indexer or mixer.sparse_top_k or mixer.output_gate or mixer.bias:
            yield "sparse, gated or biased latent attention"
    else:
        yield "mixers other than softmax attention"
    if layer.beside is not None:
        yield "mixers side by side"
    if mlp is None:
        yield "blocks without an MLP"
    elif not mlp.gated:
        yield UNGATED
    if isinstance(mlp, Moe):
        yield from _of_experts(mlp)
    if layer.norms != ("attention", "mlp"):
        yield OTHER_NORMS
    for there, phrase in (
        (layer.parallel, "attention and MLP side by side"),
        (layer.per_layer_input, "embeddings of every layer"),
        (layer.streams > 1 or layer.attention_residual, "several residual streams"),
        (layer.extras, "tensors that only its class has"),
        (layer.reused, "layers that share their weights"),
    ):
        if there:
            yield phrase


def _of_attention(mixer: Attention, mlp: Mlp | Moe | None) -> Iterator[str]:
    own = (mixer.q_bias, mixer.kv_bias, mixer.o_bias, bool(mlp and mlp.bias))
    if all(own):
        yield ALL_BIASES
    elif own == (True, True, False, False):
        yield QKV_BIAS
    elif any(own):
        yield "biases of some matmuls"
    if mixer.qk_norm != "none":
        yield HEAD_NORM if mixer.qk_norm == "head" else FULL_NORM
    for there, phrase in (
        (mixer.kind != "full", WINDOWS),
        (mixer.head_dim != mixer.v_head_dim, "values of another width than keys"),
        (mixer.output_gate, "gates of the attention's output"),
        (mixer.sinks, SINKS),
        (mixer.indexer, "keys that an indexer chooses"),
        (mixer.key_is_value or mixer.reuses_kv, "shared keys and values"),
    ):
        if there:
            yield phrase


def _of_experts(mlp: Moe) -> Iterator[str]:
    yield EXPERTS
    if mlp.shared_d_ff:
        yield SHARED
    if mlp.shared_gate:
        yield SHARED_GATE
    if (
        mlp.latent_dim
        or mlp.router_scales
        or mlp.hash_routed
        or mlp.dense
        or mlp.bias
        or mlp.idle_experts
    ):
        yield OTHER_EXPERTS


def _of_stack(cfg: ModelConfig) -> Iterator[str]:
    routed = [isinstance(cfg.layer(i).mlp, Moe) for i in range(cfg.layers)]
    if any(routed) and not all(routed):
        yield LEADING if routed == sorted(routed) else MIXED
    for there, phrase in (
        (cfg.position_rows, LEARNED),
        (cfg.embedding_dim != cfg.d_model, "an embedding of another width"),
        (cfg.embedding_norm or not cfg.final_norm, "norms elsewhere than at the end"),
        (cfg.head_bias, "a bias of the head"),
        (cfg.streams > 1 or cfg.attention_residual, "several residual streams"),
        (cfg.per_layer_input, "embeddings of every layer"),
        (cfg.towers or cfg.towers_unread, "vision or audio towers"),
    ):
        if there:
            yield phrase


def _of_numbers(cfg: ModelConfig) -> Iterator[str]:
    n = cfg.numerics
    if n is None:
        yield "a forward pass whose numbers shardwise does not know"
        return
    if n.norm != "rms":
        yield LAYER_NORM
    if n.activation != "silu":
        yield GELU if n.activation in ("gelu", "gelu_tanh") else f"the activation {n.activation}"
    for there, phrase in (
        (n.norm_offset, "norm scales that are stored less one"),
        (n.attention_softcap or n.logits_softcap, "soft caps"),
        (n.embedding_scale != 1 or n.residual_scale != 1 or n.logits_scale != 1, "fixed scales"),
        (n.position_offset, "an offset of the positions"),
    ):
        if there:
            yield phrase
    yield from _of_rotations(cfg, n)


def _of_rotations(cfg: ModelConfig, n: Numerics) -> Iterator[str]:
    known = [rope for rope in n.ropes if rope is not None]
    if len(n.ropes) > 1:
        yield "several kinds of rotation"
    if not known and not cfg.position_rows:
        yield "no positions"
    for rope in known:
        if rope.scaling == "llama3" and rope.factor != USUAL_FACTOR:
            yield LLAMA3_FACTOR
        elif rope.scaling != "none":
            yield f"{rope.scaling} rope scaling"
        mixer = cfg.groups[0].mixer
        if isinstance(mixer, Attention) and rope.dim != mixer.head_dim:
            yield PARTIAL
