"""What a model's config decides, in words and values for screens, and what is not priced of it."""

from collections.abc import Callable, Iterable
from typing import Any

from shardwise.errors import Remark, shown
from shardwise.models.config import ModelConfig
from shardwise.models.counts import params_active, params_text
from shardwise.models.flops import model_flops_per_token
from shardwise.models.kv import kv_bytes, kv_bytes_per_token
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    DeltaNet,
    LatentAttention,
    Layer,
    Lightning,
    Mamba,
    Mixer,
    Mlp,
    Moe,
    Recurrence,
    SelectiveScan,
    ShortConv,
)

Decision = int | float | str | bool | tuple[Any, ...] | None
"""One value, the distinct values of a model's layers in order, or None where it does not apply."""


def mixer_text(mixer: Mixer | None) -> str:
    """A mixer in a few words, with the widths that its heads do not show."""
    match mixer:
        case Attention():
            parts = [mixer.kind if mixer.window is None else f"{mixer.kind} {mixer.window:,}"]
            chosen = mixer.chosen_keys or (mixer.indexer and mixer.indexer.top_k)
            parts += [f"top {chosen:,}"] if chosen else []
            parts += ["differential"] * mixer.differential
            parts += ["reuses KV"] * mixer.reuses_kv + ["K=V"] * mixer.key_is_value
            parts += ["gated"] * mixer.gated + ["sinks"] * mixer.sinks
            return ", ".join(parts)
        case LatentAttention():
            query = "" if mixer.q_lora_rank is None else f"q {mixer.q_lora_rank:,}, "
            text = f"latent ({query}kv {mixer.kv_lora_rank:,} + {mixer.rope_head_dim})"
            text += "" if mixer.window is None else f", window {mixer.window:,}"
            return text if mixer.sparse_top_k is None else f"{text}, top {mixer.sparse_top_k:,}"
        case CompressedAttention():
            rest = f" + 1/{mixer.ratio} compressed" if mixer.ratio else ""
            top = "" if mixer.indexer is None else f", top {mixer.indexer.top_k:,}"
            return f"window {mixer.window:,}{rest}{top}"
        case Mamba():
            return f"Mamba-2 ({mixer.heads} x {mixer.head_dim}, state {mixer.state})"
        case SelectiveScan():
            return f"Mamba ({mixer.width:,} channels, state {mixer.state})"
        case DeltaNet():
            shape = f"{mixer.key_head_dim} x {mixer.value_head_dim}"
            return f"delta rule ({mixer.value_heads} states of {shape})"
        case Lightning():
            return f"lightning ({mixer.heads} states of {mixer.head_dim} x {mixer.head_dim})"
        case ShortConv():
            return f"convolution ({mixer.width:,} wide, {mixer.conv_width} long)"
        case Recurrence():
            state = sum(x.size for x in mixer.tensors if x.role == "state")
            return f"recurrence ({mixer.width:,} wide, state {state:,})"
        case None:
            return "none"


def mixing_text(layer: Layer) -> str:
    """What mixes tokens in a layer, in a few words."""
    mixers = " + ".join(mixer_text(part.mixer) for part in layer.by_mixer)
    return mixers + ", weights of an earlier layer" * layer.reused


def mlp_text(mlp: Mlp | Moe | None) -> str:
    """An MLP in a few words."""
    if mlp is None:
        return "none"
    gated = "gated" if mlp.gated else "plain"
    if isinstance(mlp, Mlp):
        return gated
    idle = f" and {mlp.idle_experts} that compute nothing" if mlp.idle_experts else ""
    parts = [f"{gated}, {mlp.experts_per_token} of {mlp.experts} experts{idle}"]
    parts += [f"{mlp.shared_experts} shared"] if mlp.shared_d_ff else []
    parts += ["dense beside"] if mlp.dense is not None else []
    parts += ["product keys"] if mlp.product_keys else []
    parts += ["hash-routed"] if mlp.hash_routed else []
    return " + ".join(parts)


def design_decisions(cfg: ModelConfig, context: int, dtype: str) -> dict[str, Decision]:
    """The table that ch. 6.1 asks for: a model's choices and what they cost, one value each.

    KV sizes are bytes in `dtype`, per token and for a sequence of `context` tokens.
    """
    D, layers = cfg.d_model, [layer for layer, _ in cfg.layer_groups()]
    heads = [a for layer in layers if (a := layer.attention) is not None]
    grouped = [a for a in heads if not isinstance(a, LatentAttention)]
    experts = [m for layer in layers if isinstance(m := layer.mlp, Moe)]
    widths = [layer.mlp.d_ff for layer in layers if layer.mlp is not None]
    own = [a for a in heads if isinstance(a, Attention)]
    return {
        "architecture": cfg.architecture,
        "layers L": cfg.layers,
        "d_model D": D,
        "vocabulary V": cfg.vocabulary,
        "tied embeddings": cfg.tied_embeddings,
        "max context": cfg.max_context,
        "attention": pattern_text(cfg, mixing_text),
        "heads N": _distinct(a.heads for a in heads),
        "KV heads K": _distinct(a.kv_heads for a in grouped),
        "group G = N/K": _distinct(a.heads / a.kv_heads for a in grouped),
        "head dim H": _distinct(a.head_dim for a in heads),
        "value head dim": _distinct(a.v_head_dim for a in heads),
        "N*H / D": _distinct(a.heads * a.head_dim / D for a in heads),
        "QK norm": _distinct(a.qk_norm for a in own),
        "biases": _distinct(_biases(layer) for layer in layers),
        "MLP": pattern_text(cfg, lambda layer: mlp_text(layer.mlp)),
        "d_ff F": _distinct(widths),
        "F / D": _distinct(width / D for width in widths),
        "experts E": _distinct(m.experts for m in experts),
        "experts per token k": _distinct(m.experts_per_token for m in experts),
        "E / k": _distinct(m.experts / m.experts_per_token for m in experts),
        "shared F": _distinct(m.shared_d_ff for m in experts),
        "norms": _distinct(", ".join(layer.norms) or "none" for layer in layers),
        "parallel blocks": _distinct(layer.parallel for layer in layers),
        "params, text model": params_text(cfg),
        "params, active": params_active(cfg),
        "KV bytes per token": kv_bytes_per_token(cfg, dtype),
        "KV bytes per sequence": kv_bytes(cfg, context, dtype),
        "training FLOPs per token": float(model_flops_per_token(cfg, context)),
    }


def model_warnings(cfg: ModelConfig) -> list[str]:
    """What is not priced, and which class defaults were taken."""
    said = unpriced(cfg)
    if cfg.defaulted:
        taken = ", ".join(f"{key}={value}" for key, value in cfg.defaulted)
        said.append(Remark(f"{cfg.name} leaves out {taken}; taken from {cfg.defaults_source}"))
    return said


def unpriced(cfg: ModelConfig) -> list[str]:
    """What is counted but never priced, what could not be read, and whose shape was read."""
    said: list[str] = []
    if asked := cfg.provenance.get("asked"):
        said.append(Remark(asked))
    if cfg.read_as:
        said.append(f"{cfg.name} is a {cfg.read_as}, which is unknown; read as {cfg.architecture}")
    if cfg.unread:
        keys = ", ".join(map(shown, cfg.unread))
        said.append(
            f"{cfg.name}: a {cfg.architecture} has no {keys}; not read, so counts may be off"
        )
    for tower in cfg.towers:
        said.append(f"{tower.name} tower of {cfg.name}: counted in params_total, never priced")
    for section in cfg.towers_unread:
        said.append(f"{section} of {cfg.name} is neither counted nor priced: its class is unknown")
    if any(layer.mixer is not None and layer.mixer.kind == "cross" for layer in cfg.groups):
        said.append("cross-attention: FLOPs and cache of the image tokens are not counted")
    if any(layer.reused for layer in cfg.groups):
        said.append(
            f"layers of {cfg.name} run again with the same weights: each pass is counted as a "
            "layer, and training as if gradients went through all of them"
        )
    return said


def context_warning(cfg: ModelConfig, tokens: int) -> list[str]:
    """A line where sequences of so many tokens are longer than the model says it can read."""
    if cfg.max_context is None or tokens <= cfg.max_context:
        return []
    said = (
        f"sequences of {tokens:,} tokens are longer than the {cfg.max_context:,} of {cfg.name} "
        "(max_position_embeddings): they are priced, but answers may be poor"
    )
    return [said]


def pattern_text(cfg: ModelConfig, describe: Callable[[Layer], str]) -> str:
    """How many layers are of each kind, such as "52 x window 1,024, 10 x full"."""
    counts: dict[str, int] = {}
    for layer, count in cfg.layer_groups():
        text = describe(layer)
        counts[text] = counts.get(text, 0) + count
    return "; ".join(f"{count} x {text}" for text, count in counts.items())


def _biases(layer: Layer) -> str:
    a, mlp = layer.attention, layer.mlp
    named = {
        "q": getattr(a, "q_bias", False),
        "kv": getattr(a, "kv_bias", False),
        "o": getattr(a, "o_bias", False),
        "latent": getattr(a, "bias", False),
        "mlp": mlp is not None and mlp.bias,
        "norm": layer.norm_bias,
    }
    return " ".join(name for name, there in named.items() if there) or "none"


def _distinct(values: Iterable[Any]) -> Decision:
    found = tuple(dict.fromkeys(values))
    return found if len(found) > 1 else found[0] if found else None
