"""The table of numerics: one row per model type that can be run, and how its keys are read.

The rows stand in `data/numerics.toml`. A key with a value that no rule covers makes the model not
runnable, with the reason; it never makes it unknown to the planner.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from shardwise.boundary import number, whole
from shardwise.errors import BadRequest
from shardwise.models.numerics import ActivationName, NormKind, Numerics, Rope, Routing
from shardwise.models.reader import Reader
from shardwise.models.rows import read_rows
from shardwise.models.specs import Attention, DeltaNet, LatentAttention, Layer, Moe, ShortConv

Section = Mapping[str, Any]
ACTIVATIONS: Mapping[str, ActivationName] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""Our names of activations by those of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsRow:
    """How one model type computes. `eps` and `activation` are (key, default).

    `rotary` says which layers rotate: "all", "none", "window" (sliding layers alone), "listed"
    (`no_rope_layers`), "local" (sliding layers have a base of their own, Gemma 3) or "unscaled"
    (sliding layers leave the scaling out, OLMo 3). `partial` is (key, default) of the share of a
    head that rotates, `rotary_dim` that of the number of its elements. `routing` is a name of
    `_ROUTINGS` where keys decide, else the fields of `Routing`; `more` is a name of `_MORE`.
    `defaults` fill other keys; a key of `only` has the value there, and no other is modelled.
    """

    norm: NormKind = "rms"
    eps: tuple[str, float] = ("rms_norm_eps", 1e-6)
    norm_offset: float = 0.0
    activation: tuple[str, str] = ("hidden_act", "silu")
    theta: float = 10_000.0
    local_theta: float = 10_000.0
    rotary: str = "all"
    interleaved: bool = False
    partial: tuple[str, float] = ("partial_rotary_factor", 1.0)
    rotary_dim: tuple[str, int] | None = None
    scaling: Section = field(default_factory=dict)
    routing: str | Section = field(default_factory=dict)
    more: str = ""
    defaults: Section = field(default_factory=dict)
    only: Section = field(default_factory=dict)


@cache
def numerics_rows() -> Mapping[str, NumericsRow]:
    """How each model type computes, by `Architecture.model_type`."""
    rows = read_rows(Path(__file__).parent / "data" / "numerics.toml")
    shared = ("common", *(name for name in rows if name.startswith("_")))
    return {name: NumericsRow(**row) for name, row in rows.items() if name not in shared}


def _softmax_routing(r: Reader) -> Routing:
    return Routing(normalise=bool(r.get("norm_topk_prob")))


def _deepseek_v2_routing(r: Reader) -> Routing:
    method = r.text("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise r.error("topk_method", method, "greedy and group_limited_greedy are modelled")
    scale = r.number("routed_scaling_factor")
    if method == "greedy":
        return Routing(scale=scale)
    return Routing(scale=scale, groups=r.size("n_group"), top_groups=r.size("topk_group"))


def _sigmoid_routing(r: Reader) -> Routing:
    return Routing(
        scoring="sigmoid",
        normalise=r.flag("norm_topk_prob"),
        scale=r.number("routed_scaling_factor"),
        groups=r.size("n_group"),
        top_groups=r.size("topk_group"),
        group_score="two_best",
        correction=True,
    )


def _gemma(r: Reader, n: Numerics) -> Numerics:
    scaled = replace(n, embedding_scale=math.sqrt(r.size("hidden_size")))
    if r.get("query_pre_attn_scalar") is None:
        return scaled
    return replace(scaled, attention_scale=r.number("query_pre_attn_scalar") ** -0.5)


def _granite(r: Reader, n: Numerics) -> Numerics:
    return replace(
        n,
        embedding_scale=r.number("embedding_multiplier"),
        attention_scale=r.number("attention_multiplier"),
        residual_scale=r.number("residual_multiplier"),
        logits_scale=1 / r.number("logits_scaling"),
    )


def _gpt_oss(r: Reader, n: Numerics) -> Numerics:
    limit, alpha = r.number("swiglu_limit"), r.number("swiglu_alpha")
    return replace(n, activation="clamped_silu", gate_limit=limit, gate_alpha=alpha)


def _cohere(r: Reader, n: Numerics) -> Numerics:
    return replace(n, logits_scale=r.number("logit_scale"))


_ROUTINGS: Mapping[str, Callable[[Reader], Routing]] = {
    "softmax": _softmax_routing,
    "sigmoid": _sigmoid_routing,
    "deepseek_v2": _deepseek_v2_routing,
}
_MORE: Mapping[str, Callable[[Reader, Numerics], Numerics]] = {
    "gemma": _gemma,
    "granite": _granite,
    "gpt_oss": _gpt_oss,
    "cohere": _cohere,
}
"""What some read beyond the fields of a row."""


def read_numerics(
    r: Reader, model_type: str, kinds: list[str], stack: list[Layer]
) -> tuple[Numerics | None, str]:
    """The numerics of a config, or None and why there are none. Never raises.

    `kinds` is one word per layer as `patterns` gives them, `stack` the layers themselves.
    """
    row = numerics_rows().get(model_type)
    if row is None:
        return None, f"the runtime does not support model type '{model_type}'"
    for layer in stack:
        why = unsupported(layer)
        if why:
            return None, why
    try:
        return _read(_reader(r, row), row, kinds, stack), ""
    except BadRequest as error:
        return None, str(error)
    except (KeyError, TypeError, ValueError) as error:
        return None, f"{r.file}: a rotation or scale in it cannot be read ({error!r})"


def unsupported(layer: Layer) -> str:
    """Why the runtime cannot compute a layer, or "" where it can."""
    mixer, mlp = layer.mixer, layer.mlp
    if mixer is None or mlp is None:
        return "its layers hold attention or an MLP alone"
    scalar = isinstance(mixer, DeltaNet) and mixer.gate == "scalar" and not mixer.output_rank
    if not (scalar or isinstance(mixer, Attention | LatentAttention | ShortConv)):
        return f"its layers use the mixer '{mixer.kind}', which the runtime does not support"
    latent = isinstance(mixer, LatentAttention) and mixer.sparse_top_k is not None
    if latent or (isinstance(mixer, Attention) and mixer.indexer):
        return f"its {'latent ' * latent}attention chooses keys with an indexer"
    if isinstance(mixer, Attention) and (
        mixer.kind == "cross" or mixer.reuses_kv or mixer.key_is_value
    ):
        return "its layers attend to images, or share keys and values"
    if isinstance(mixer, LatentAttention) and (
        mixer.window is not None or mixer.rope_norm or mixer.query_gate
    ):
        return "its latent attention slides, norms rotary keys, or gates from its queries"
    if isinstance(mixer, Attention) and (mixer.differential or mixer.chosen_keys is not None):
        return "its attention subtracts two products, or is masked by its values"
    if layer.beside is not None:
        return f"'{layer.beside.kind}' stands beside attention in its layers"
    if layer.reused:
        return "its layers run several times with the same weights"
    if layer.gated_norms or layer.residual_scales:
        return "its norms have gates, or its residual stream learned scales"
    gated = isinstance(mixer, LatentAttention) and mixer.output_gate
    if gated or layer.streams > 1 or layer.attention_residual or layer.per_layer_input:
        return "its layers gate attention outputs or carry more than one residual stream"
    if isinstance(mlp, Moe) and (
        mlp.latent_dim or mlp.router_scales or mlp.hash_routed or mlp.dense is not None
    ):
        return "its experts work in a latent, beside an MLP, or are chosen by hash"
    if isinstance(mlp, Moe) and mlp.product_keys:
        return "its experts are rows that product keys find"
    return ""


def _reader(r: Reader, row: NumericsRow) -> Reader:
    pairs = dict(pair for pair in (row.eps, row.activation, row.partial, row.rotary_dim) if pair)
    return replace(
        r, defaults={**r.defaults, **pairs, **row.only, **row.defaults}, defaulted={}, missing=None
    )


def _read(r: Reader, row: NumericsRow, kinds: list[str], stack: list[Layer]) -> Numerics:
    for key, runs in row.only.items():
        if r.get(key) != runs:
            raise r.error(key, r.get(key), f"only {runs} is modelled")
    if r.get("clip_qkv") is not None:
        raise r.error("clip_qkv", r.get("clip_qkv"), "clipped projections are not modelled")
    name = r.text(row.activation[0]) or row.activation[1]
    if name not in ACTIVATIONS:
        raise r.error(row.activation[0], name, f"known: {', '.join(ACTIVATIONS)}")
    mixers = [layer.mixer for layer in stack]
    mixer = next((m for m in mixers if isinstance(m, Attention | LatentAttention)), None)
    if mixer is None:
        raise BadRequest(f"{r.file}: no layer attends, which is not modelled")
    ropes, pattern = _ropes(r, row, kinds, mixer)
    numerics = Numerics(
        norm=row.norm,
        norm_eps=r.number(row.eps[0]) if row.eps[0] else row.eps[1],
        norm_offset=row.norm_offset,
        activation=ACTIVATIONS[name],
        attention_scale=_attention_scale(r, row, mixer),
        attention_softcap=_cap(r, "attn_logit_softcapping"),
        logits_softcap=_cap(r, "final_logit_softcapping"),
        ropes=ropes,
        rope_pattern=pattern,
        routing=_routing(r, row),
    )
    return _MORE[row.more](r, numerics) if row.more else numerics


def _routing(r: Reader, row: NumericsRow) -> Routing:
    said = row.routing
    return _ROUTINGS[said](r) if isinstance(said, str) else Routing(**said)


def _cap(r: Reader, key: str) -> float | None:
    return None if r.get(key) is None else r.number(key)


def _attention_scale(r: Reader, row: NumericsRow, mixer: Attention | LatentAttention) -> float:
    scale = mixer.head_dim**-0.5
    section = _section(r, row, "full_attention")
    every = section.get("mscale_all_dim")
    if isinstance(mixer, LatentAttention) and every:
        every = _of(section, "mscale_all_dim")
        return scale * _mscale(_of(section, "factor", 1.0), every) ** 2
    return scale


def _mscale(factor: float, weight: float) -> float:
    """YaRN's attention temperature, 0.1 w ln(s) + 1 (Peng et al. 2023, eq. 22)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _ropes(
    r: Reader, row: NumericsRow, kinds: list[str], mixer: Attention | LatentAttention
) -> tuple[tuple[Rope | None, ...], tuple[int, ...]]:
    if row.rotary == "none":
        return (None,), (0,) * len(kinds)
    whole = _rope(r, row, mixer, _section(r, row, "full_attention"))
    sliding = tuple(int(kind == "window") for kind in kinds)
    match row.rotary:
        case "window":
            return (None, whole), sliding if any(sliding) else (1,) * len(kinds)
        case "listed":
            return (None, whole), _listed(r, len(kinds))
        case "local":
            local = _rope(r, row, mixer, _local(r, row))
            return (whole, local), sliding
        case "unscaled":
            plain = replace(whole, scaling="none", factor=1.0, attention_factor=1.0)
            return ((whole, plain), sliding) if plain != whole else ((whole,), (0,) * len(kinds))
    return (whole,), (0,) * len(kinds)


def _listed(r: Reader, layers: int) -> tuple[int, ...]:
    listed = r.integers("no_rope_layers", layers)
    if listed:
        return tuple(int(v != 0) for v in listed)
    period = r.size("no_rope_layer_interval")
    return tuple(int((i + 1) % period != 0) for i in range(layers))


def _section(r: Reader, row: NumericsRow, kind: str) -> Section:
    """The keys of a rotation: `rope_parameters`, by kind of layer or not; else the older keys."""
    given = r.get("rope_parameters")
    if isinstance(given, Mapping) and given:
        nested = given.get(kind)
        if isinstance(nested, Mapping):
            return nested
        if "sliding_attention" not in given:
            return given
    scaling = r.get("rope_scaling")
    theta = r.get("rope_theta")
    if scaling is not None and not isinstance(scaling, Mapping):
        raise r.error("rope_scaling", scaling, "it must be an object {...}")
    return {**(scaling or row.scaling), **({} if theta is None else {"rope_theta": theta})}


def _local(r: Reader, row: NumericsRow) -> Section:
    """Gemma 3: the sliding layers' own base, never scaled in the older keys."""
    given = r.get("rope_parameters")
    if isinstance(given, Mapping) and isinstance(given.get("sliding_attention"), Mapping):
        return given["sliding_attention"]
    theta = r.get("rope_local_base_freq")
    return {"rope_theta": row.local_theta if theta is None else theta}


def _rope(r: Reader, row: NumericsRow, mixer: Attention | LatentAttention, s: Section) -> Rope:
    theta = _of(s, "rope_theta", row.theta)
    kind = s.get("rope_type", s.get("type", "default")) or "default"
    if s.get("mrope_section") is not None or kind == "mrope":
        raise r.error("rope_scaling", dict(s), "positions in several dims (mrope) are not modelled")
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise r.error("rope_scaling", kind, "default, linear, llama3 and yarn are modelled")
    rope = Rope(dim=_rotated(r, row, mixer, s), theta=theta, interleaved=row.interleaved)
    if kind == "default":
        return rope
    factor = _of(s, "factor")
    if kind == "linear":
        return replace(rope, scaling="linear", factor=factor)
    key = "original_max_position_embeddings"
    longest = s.get(key) or r.size("max_position_embeddings")
    longest = whole(longest, f"{key} of the rotation", least=1, most=2**40)
    if kind == "llama3":
        low, high = _of(s, "low_freq_factor"), _of(s, "high_freq_factor")
        return replace(
            rope, scaling="llama3", factor=factor, low=low, high=high, original_context=longest
        )
    return replace(
        rope,
        scaling="yarn",
        factor=factor,
        low=_of(s, "beta_slow", 1),
        high=_of(s, "beta_fast", 32),
        original_context=longest,
        truncate=bool(s.get("truncate", True)),
        attention_factor=_yarn_attention(s, factor),
    )


def _yarn_attention(s: Section, factor: float) -> float:
    if s.get("attention_factor") is not None:
        return _of(s, "attention_factor")
    if s.get("mscale") and s.get("mscale_all_dim"):
        return _mscale(factor, _of(s, "mscale")) / _mscale(factor, _of(s, "mscale_all_dim"))
    return _mscale(factor, 1.0)


def _rotated(r: Reader, row: NumericsRow, mixer: Attention | LatentAttention, s: Section) -> int:
    if isinstance(mixer, LatentAttention):
        return mixer.rope_head_dim
    if row.rotary_dim is not None:
        return min(r.size(row.rotary_dim[0]), mixer.head_dim)
    share = s.get("partial_rotary_factor")
    if share is None:
        share = r.number(row.partial[0])
    return int(mixer.head_dim * number(share, _SHARE, above=0, most=1))


_SHARE = "partial_rotary_factor of the rotation"


def _of(s: Section, key: str, default: float | None = None) -> float:
    """A number of a rotation's section, or the default where it is absent or null (0 is absent)."""
    return number(s.get(key) or default, f"{key} of the rotation", above=0, most=1e12)


assert set(ACTIVATIONS.values()) <= set(get_args(ActivationName))
