"""The table of numerics: one row per model type that can be run, and how its keys are read.

Defaults were read from the classes of transformers that `architectures.py` names. A key with a
value that no rule covers makes the model not runnable, with the reason; it never makes it unknown
to the planner.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from shardwise.boundary import number, whole
from shardwise.errors import BadRequest
from shardwise.models.numerics import ActivationName, NormKind, Numerics, Rope, Routing
from shardwise.models.reader import Reader
from shardwise.models.specs import Attention, LatentAttention, Layer, Moe

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

ABSENT = {
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": None,
    "clip_qkv": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one model type computes. `eps` and `activation` are (key, default).

    `rotary` says which layers rotate: "all", "none", "window" (sliding layers alone), "listed"
    (`no_rope_layers`), "local" (sliding layers have a base of their own, Gemma 3) or "unscaled"
    (sliding layers leave the scaling out, OLMo 3). `partial` is (key, default) of the share of a
    head that rotates. `defaults` fill other keys, `refuse` maps a key to the one value that runs.
    """

    norm: NormKind = "rms"
    eps: tuple[str, float] = ("rms_norm_eps", 1e-6)
    norm_offset: float = 0.0
    activation: tuple[str, str] = ("hidden_act", "silu")
    theta: float = 10_000.0
    local_theta: float = 10_000.0
    rotary: str = "all"
    interleaved: bool = False
    partial: tuple[str, float] | None = ("partial_rotary_factor", 1.0)
    rotary_dim: tuple[str, int] | None = None
    scaling: Section = field(default_factory=dict)
    routing: Callable[[Reader], Routing] | None = None
    more: Callable[[Reader, Numerics], Numerics] | None = None
    defaults: Section = field(default_factory=dict)
    refuse: Section = field(default_factory=dict)


def _softmax_routing(normalise: bool) -> Callable[[Reader], Routing]:
    return lambda r: Routing(normalise=bool(r.get("norm_topk_prob") or normalise))


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


def _chosen_routing(r: Reader) -> Routing:
    return Routing(scoring="softmax_chosen")


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


def _opt(r: Reader, n: Numerics) -> Numerics:
    return replace(n, position_offset=2)


LAYER_NORM = Row(norm="layer", eps=("layer_norm_eps", 1e-5))
GPT2 = Row(
    norm="layer",
    eps=("layer_norm_epsilon", 1e-5),
    activation=("activation_function", "gelu_new"),
    rotary="none",
    defaults={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    refuse={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
)
GEMMA = Row(
    norm_offset=1.0,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    more=_gemma,
    defaults={"query_pre_attn_scalar": None},
)
MOE = {"norm_topk_prob": False}
GRANITE = {
    "embedding_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
SIGMOID = {"norm_topk_prob": True, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1}
YARN_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

ROWS: Mapping[str, Row] = {
    "llama": Row(),
    "mistral": Row(),
    "arcee": Row(eps=("rms_norm_eps", 1e-5), activation=("hidden_act", "relu2")),
    "seed_oss": Row(),
    "ernie4_5": Row(eps=("rms_norm_eps", 1e-5), theta=5e5, interleaved=True),
    "smollm3": Row(theta=2e6, rotary="listed", defaults={"no_rope_layers": None}
        | {"no_rope_layer_interval": 4}),
    "mixtral": Row(
        eps=("rms_norm_eps", 1e-5),
        theta=1e6,
        routing=lambda r: Routing(normalise=True),
    ),
    "qwen2": Row(),
    "qwen3": Row(),
    "qwen2_moe": Row(routing=_softmax_routing(False), defaults=MOE),
    "qwen3_moe": Row(routing=_softmax_routing(False), defaults=MOE),
    "olmoe": Row(eps=("rms_norm_eps", 1e-5), routing=_softmax_routing(False), defaults=MOE),
    "olmo2": Row(eps=("rms_norm_eps", 1e-5)),
    "olmo3": Row(eps=("rms_norm_eps", 1e-5), rotary="unscaled"),
    "exaone4": Row(eps=("rms_norm_eps", 1e-5), rotary="window"),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA,
        defaults={
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3_text": replace(
        GEMMA,
        theta=1e6,
        rotary="local",
        defaults={"query_pre_attn_scalar": 256, "rope_local_base_freq": None}
        | {"use_bidirectional_attention": False},
        refuse={"use_bidirectional_attention": False},
    ),
    "gpt_oss": Row(
        eps=("rms_norm_eps", 1e-5),
        theta=150_000.0,
        scaling=YARN_OSS,
        routing=_chosen_routing,
        more=_gpt_oss,
        defaults={"swiglu_limit": 7.0, "swiglu_alpha": 1.702},
    ),
    "granite": Row(more=_granite, defaults=GRANITE),
    "granitemoe": Row(routing=_chosen_routing, more=_granite, defaults=GRANITE),
    "deepseek_v2": Row(
        interleaved=True,
        partial=None,
        routing=_deepseek_v2_routing,
        defaults={"topk_method": "greedy", "routed_scaling_factor": 1.0, "n_group": 1}
        | {"topk_group": 1},
    ),
    "deepseek_v3": Row(
        interleaved=True,
        partial=None,
        routing=_sigmoid_routing,
        defaults={**SIGMOID, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4},
    ),
    "glm4_moe": Row(
        eps=("rms_norm_eps", 1e-5),
        partial=("partial_rotary_factor", 0.5),
        routing=_sigmoid_routing,
        defaults=SIGMOID,
    ),
    "gpt2": GPT2,
    "gptj": replace(
        GPT2, rotary="all", interleaved=True, rotary_dim=("rotary_dim", 64), defaults={}, refuse={}
    ),
    "gpt_neox": replace(
        LAYER_NORM, activation=("hidden_act", "gelu"), partial=("rotary_pct", 0.25)
    ),
    "opt": replace(
        LAYER_NORM,
        eps=("", 1e-5),
        activation=("activation_function", "relu"),
        rotary="none",
        more=_opt,
        defaults={"do_layer_norm_before": True, "_remove_final_layer_norm": False},
        refuse={"do_layer_norm_before": True, "_remove_final_layer_norm": False},
    ),
    "phi": replace(
        LAYER_NORM,
        activation=("hidden_act", "gelu_new"),
        partial=("partial_rotary_factor", 0.5),
    ),
    "phi3": Row(eps=("rms_norm_eps", 1e-5)),
    "stablelm": replace(
        LAYER_NORM,
        partial=("partial_rotary_factor", 0.25),
        defaults={"qk_layernorm": False},
        refuse={"qk_layernorm": False},
    ),
    "starcoder2": replace(
        LAYER_NORM, eps=("norm_epsilon", 1e-5), activation=("hidden_act", "gelu_pytorch_tanh")
    ),
    "cohere": replace(
        LAYER_NORM,
        theta=5e5,
        interleaved=True,
        more=_cohere,
        defaults={"logit_scale": 0.0625},
    ),
    "cohere2": replace(
        LAYER_NORM,
        interleaved=True,
        rotary="window",
        more=_cohere,
        defaults={"logit_scale": 0.0625},
    ),
}  # fmt: skip
ROWS = {**ROWS, "gemma3": ROWS["gemma3_text"]}
"""How each model type computes, by `Architecture.model_type`; of models with towers the text."""


def read_numerics(
    r: Reader, model_type: str, kinds: list[str], stack: list[Layer]
) -> tuple[Numerics | None, str]:
    """The numerics of a config, or None and why there are none. Never raises.

    `kinds` is one word per layer as `patterns` gives them, `stack` the layers themselves.
    """
    row = ROWS.get(model_type)
    if row is None:
        return None, f"the runtime has no rule for model type '{model_type}'"
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
    if not isinstance(mixer, Attention | LatentAttention):
        return f"its layers mix by '{mixer.kind}', which the runtime does not have"
    if isinstance(mixer, LatentAttention) and mixer.sparse_top_k is not None:
        return "its latent attention chooses keys with an indexer"
    if isinstance(mixer, Attention) and (
        mixer.kind == "cross" or mixer.reuses_kv or mixer.key_is_value
    ):
        return "its layers attend to images, or share keys and values"
    if mixer.output_gate or layer.streams > 1 or layer.attention_residual or layer.per_layer_input:
        return "its layers gate attention outputs or carry more than one residual stream"
    if isinstance(mlp, Moe) and (
        mlp.latent_dim or mlp.router_scales or mlp.hash_routed or mlp.dense is not None
    ):
        return "its experts work in a latent, beside an MLP, or are chosen by hash"
    return ""


def _reader(r: Reader, row: Row) -> Reader:
    defaults = {**ABSENT, row.eps[0]: row.eps[1], row.activation[0]: row.activation[1]}
    for pair in (row.partial, row.rotary_dim):
        if pair is not None:
            defaults[pair[0]] = pair[1]
    return replace(r, defaults={**r.defaults, **defaults, **row.defaults}, defaulted={})


def _read(r: Reader, row: Row, kinds: list[str], stack: list[Layer]) -> Numerics:
    for key, runs in row.refuse.items():
        if r.get(key) != runs:
            raise r.error(key, r.get(key), f"only {runs} is modelled")
    if r.get("clip_qkv") is not None:
        raise r.error("clip_qkv", r.get("clip_qkv"), "clipped projections are not modelled")
    name = r.text(row.activation[0]) or row.activation[1]
    if name not in ACTIVATIONS:
        raise r.error(row.activation[0], name, f"known: {', '.join(ACTIVATIONS)}")
    mixer = stack[0].mixer
    assert isinstance(mixer, Attention | LatentAttention)
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
        routing=row.routing(r) if row.routing else Routing(),
    )
    return row.more(r, numerics) if row.more else numerics


def _cap(r: Reader, key: str) -> float | None:
    return None if r.get(key) is None else r.number(key)


def _attention_scale(r: Reader, row: Row, mixer: Attention | LatentAttention) -> float:
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
    r: Reader, row: Row, kinds: list[str], mixer: Attention | LatentAttention
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


def _section(r: Reader, row: Row, kind: str) -> Section:
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


def _local(r: Reader, row: Row) -> Section:
    """Gemma 3: the sliding layers' own base, never scaled in the older keys."""
    given = r.get("rope_parameters")
    if isinstance(given, Mapping) and isinstance(given.get("sliding_attention"), Mapping):
        return given["sliding_attention"]
    theta = r.get("rope_local_base_freq")
    return {"rope_theta": row.local_theta if theta is None else theta}


def _rope(r: Reader, row: Row, mixer: Attention | LatentAttention, s: Section) -> Rope:
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


def _rotated(r: Reader, row: Row, mixer: Attention | LatentAttention, s: Section) -> int:
    if isinstance(mixer, LatentAttention):
        return mixer.rope_head_dim
    if row.rotary_dim is not None:
        return min(r.size(row.rotary_dim[0]), mixer.head_dim)
    share = s.get("partial_rotary_factor")
    if share is None and row.partial is not None:
        share = r.number(row.partial[0])
    return int(mixer.head_dim * number(1.0 if share is None else share, _SHARE, above=0, most=1))


_SHARE = "partial_rotary_factor of the rotation"


def _of(s: Section, key: str, default: float | None = None) -> float:
    """A number of a rotation's section, or the default where it is absent or null (0 is absent)."""
    return number(s.get(key) or default, f"{key} of the rotation", above=0, most=1e12)


assert set(ACTIVATIONS.values()) <= set(get_args(ActivationName))
