"""Build one mixer or one MLP from the keys that most classes share."""

from dataclasses import dataclass
from typing import Any, Literal

from shardwise.models.reader import LIMIT, Reader
from shardwise.models.specs import (
    Attention,
    DeltaNet,
    GateBias,
    Indexer,
    LatentAttention,
    Lightning,
    Mamba,
    Mixer,
    Mlp,
    Moe,
    QkNorm,
    SelectiveScan,
    ShortConv,
)

Switch = bool | str
"""A fact of the class, or the name of the config key that decides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a class hard-codes about its layers, or reads from a key of its own."""

    qkv_bias: Switch = False
    o_bias: Switch = False
    qk_norm: QkNorm = "none"
    qk_norm_if: Switch = True
    qk_norm_bias: bool = False
    sinks: Switch = False
    output_gate: Switch = False
    gate_bias: GateBias = "queries"
    head_gate: Switch = False
    out_norm: bool = False
    gated: bool = True
    mlp_bias: Switch = False
    mlp_norm: bool = False
    activation_scalars: int = 0
    moe_bias: bool = False
    selection_bias: Switch = False
    shared: str = "none"
    shared_gate: bool = False
    scores_shared: bool = False
    idle: int | str = 0
    norms: tuple[str, ...] = ("attention", "mlp")
    norm_bias: Switch = False
    parallel: Switch = False
    residual_scales: bool = False


def switch(r: Reader, value: Switch) -> bool:
    """Resolve a Switch."""
    return r.flag(value) if isinstance(value, str) else value


def heads_of(r: Reader) -> tuple[int, int, int]:
    """N, K and H; K is N and H is D / N where the config says null."""
    heads = r.size("num_attention_heads")
    kv_heads = r.size_or_none("num_key_value_heads") or heads
    return heads, check_heads(r, heads, kv_heads), head_dim_of(r, heads)


def check_heads(r: Reader, heads: int, kv_heads: int) -> int:
    """K, once N is known to be a multiple of it."""
    if heads % kv_heads:
        rule = f"it must divide num_attention_heads, {heads}"
        raise r.error("num_key_value_heads", kv_heads, rule)
    return kv_heads


def head_dim_of(r: Reader, heads: int) -> int:
    """H from `head_dim`, else D / N, which must be whole unless the class rounds it down."""
    given = r.size_or_none("head_dim")
    if given is not None:
        return given
    d_model = r.size("hidden_size")
    if d_model % heads and r.defaults.get("head_dim_is_whole", True):
        rule = f"without head_dim it must divide hidden_size, {d_model}"
        raise r.error("num_attention_heads", heads, rule)
    return d_model // heads


def window_of(r: Reader, kind: str) -> int | None:
    """The window of a layer; None where it covers the longest context and so never cuts."""
    if kind not in ("window", "chunk"):
        return None
    window = r.size("sliding_window" if kind == "window" else "attention_chunk_size")
    longest = r.size_or_none("max_position_embeddings")
    return None if longest is not None and window >= longest else window


def attention(
    heads: int, kv_heads: int, head_dim: int, qkv_bias: bool = False, **more: Any
) -> Attention:
    """Attention whose values are as wide as its keys; over all keys unless `more` says a kind."""
    return Attention(
        **{"kind": "full", "q_bias": qkv_bias, "kv_bias": qkv_bias, **more},
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
    )


def softmax(r: Reader, kind: str, t: Traits) -> Mixer:
    """Ordinary attention of kind "full", "window" or "chunk"."""
    window = window_of(r, kind)
    return attention(
        *heads_of(r),
        switch(r, t.qkv_bias),
        kind="full" if window is None else kind,
        window=window,
        o_bias=switch(r, t.o_bias),
        qk_norm=t.qk_norm if switch(r, t.qk_norm_if) else "none",
        qk_norm_bias=t.qk_norm_bias,
        output_gate=switch(r, t.output_gate),
        gate_bias=t.gate_bias,
        head_gate=switch(r, t.head_gate),
        out_norm=t.out_norm,
        sinks=switch(r, t.sinks),
    )


def latent(r: Reader, kind: str, t: Traits) -> LatentAttention:
    """Multi-head latent attention; a null `q_lora_rank` means queries without a latent."""
    return LatentAttention(
        heads=r.size("num_attention_heads"),
        q_lora_rank=r.size_or_none("q_lora_rank"),
        kv_lora_rank=r.size("kv_lora_rank"),
        nope_head_dim=r.size("qk_nope_head_dim"),
        rope_head_dim=r.count("qk_rope_head_dim"),
        v_head_dim=r.size("v_head_dim"),
        bias=switch(r, t.qkv_bias),
        output_gate=switch(r, t.output_gate),
        head_gate=switch(r, t.head_gate),
        head_sinks=switch(r, t.sinks),
    )


def indexer_of(r: Reader, ratio: int = 1) -> Indexer:
    """The sparse indexer of DeepSeek-V3.2, GLM-5 and DeepSeek-V4."""
    return Indexer(
        heads=r.size("index_n_heads"),
        head_dim=r.size("index_head_dim"),
        top_k=r.size("index_topk"),
        ratio=ratio,
    )


def differential(r: Reader, kind: str, t: Traits) -> Mixer:
    """DiffLlama: two products of attention for the halves of the values, so K must be even."""
    plain = attention(
        *heads_of(r), switch(r, t.qkv_bias), o_bias=switch(r, t.o_bias), differential=True
    )
    if plain.kv_heads % 2:
        rule = "differential attention pairs the heads of the values, so it must be even"
        raise r.error("num_key_value_heads", plain.kv_heads, rule)
    return plain


def masked_by_values(r: Reader, kind: str, t: Traits) -> Mixer:
    """Doge: a mask made of the values leaves `keep_window_size` keys, the best of each head."""
    return attention(
        *heads_of(r),
        switch(r, t.qkv_bias),
        o_bias=switch(r, t.o_bias),
        qk_norm=t.qk_norm,
        chosen_keys=r.size("keep_window_size"),
    )


def gated_delta(r: Reader, kind: str, t: Traits) -> Mixer:
    """Gated DeltaNet where `kind` is "linear", gated attention elsewhere (Qwen3-Next)."""
    if kind != "linear":
        return softmax(r, kind, t)
    return DeltaNet(
        key_heads=r.size("linear_num_key_heads"),
        value_heads=r.size("linear_num_value_heads"),
        key_head_dim=r.size("linear_key_head_dim"),
        value_head_dim=r.size("linear_value_head_dim"),
        conv_width=r.size("linear_conv_kernel_dim"),
    )


def kimi_delta(r: Reader, gate: Literal["channel", "full"], output_rank: int) -> DeltaNet:
    """Kimi Delta Attention: as many key as value heads, of one dim."""
    heads, head_dim = r.size("linear_num_heads"), r.size("linear_head_dim")
    return DeltaNet(
        key_heads=heads,
        value_heads=heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        conv_width=r.size("linear_conv_kernel_dim"),
        gate=gate,
        output_rank=output_rank,
    )


def lightning(r: Reader, kind: str, t: Traits) -> Mixer:
    """Lightning attention where `kind` is "linear" (MiniMax)."""
    if kind != "linear":
        return softmax(r, kind, t)
    heads, _, head_dim = heads_of(r)
    return Lightning(heads=heads, head_dim=head_dim)


def mamba2(r: Reader, kind: str, t: Traits) -> Mixer:
    """Mamba-2 of `mamba_expand` times D channels where `kind` is "linear" (Bamba, Granite 4),
    or of `mamba_d_ssm` channels where that is given (Falcon-H1)."""
    if kind != "linear":
        return softmax(r, kind, t)
    heads, given = r.size("mamba_n_heads"), r.size_or_none("mamba_d_ssm")
    width = given or r.size("mamba_expand") * r.size("hidden_size")
    if width % heads:
        said = "mamba_d_ssm" if given else "mamba_expand times D"
        raise r.error("mamba_n_heads", heads, f"it must divide {width:,}, {said}")
    return Mamba(
        heads=heads,
        head_dim=width // heads,
        groups=r.size("mamba_n_groups"),
        state=r.size("mamba_d_state"),
        conv_width=r.size("mamba_d_conv"),
        conv_bias=r.flag("mamba_conv_bias"),
        proj_bias=r.flag("mamba_proj_bias"),
    )


def selective_scan(r: Reader, kind: str, t: Traits) -> Mixer:
    """Mamba-1 where `kind` is "linear", of `mamba_expand` times D channels unless the class takes
    a width that is given; the rank of the step is D / 16 where "auto" (Jamba)."""
    if kind != "linear":
        return softmax(r, kind, t)
    d_model = r.size("hidden_size")
    auto = r.get("mamba_dt_rank") == "auto"
    return SelectiveScan(
        width=r.size_or_none("scan_width") or r.size("mamba_expand") * d_model,
        state=r.size("mamba_d_state"),
        step_rank=-(-d_model // 16) if auto else r.size("mamba_dt_rank"),
        conv_width=r.size("mamba_d_conv"),
        conv_bias=r.flag("mamba_conv_bias"),
        proj_bias=r.flag("mamba_proj_bias"),
        norms=r.flag("mamba_norms"),
    )


def short_conv(r: Reader, kind: str, t: Traits) -> Mixer:
    """A short convolution where `kind` is "conv" (LFM2)."""
    if kind != "conv":
        return softmax(r, kind, t)
    return ShortConv(
        width=r.size("hidden_size"), conv_width=r.size("conv_L_cache"), bias=r.flag("conv_bias")
    )


def dense(r: Reader, t: Traits) -> Mlp:
    """F is `intermediate_size`, or D times `expansion_ratio` where that is null."""
    d_ff = r.size_or_none("intermediate_size")
    if d_ff is None:
        d_ff = r.size("hidden_size") * r.size("expansion_ratio")
    return Mlp(
        d_ff=d_ff,
        gated=t.gated,
        bias=switch(r, t.mlp_bias),
        inner_norm=t.mlp_norm,
        activation_scalars=t.activation_scalars,
    )


def experts(r: Reader, t: Traits) -> Moe:
    """Routed experts, and shared ones by `t.shared`: none, one, a count of them, their whole width,
    or a count of them with a width of their own."""
    total, chosen = r.size("num_experts"), r.size("num_experts_per_tok")
    if chosen > total:
        raise r.error("num_experts_per_tok", chosen, f"the model has only {total} experts")
    d_ff = r.size("moe_intermediate_size")
    shared, width = _shared(r, t, d_ff)
    return Moe(
        experts=total,
        experts_per_token=chosen,
        d_ff=d_ff,
        gated=t.gated,
        shared_experts=shared,
        shared_d_ff=width,
        shared_gate=t.shared_gate and shared > 0,
        shared_bias=shared > 0 and switch(r, t.mlp_bias),
        bias=t.moe_bias,
        selection_bias=switch(r, t.selection_bias),
        idle_experts=r.count(t.idle) if isinstance(t.idle, str) else t.idle,
        router_dim=r.size("router_dim") if "router_dim" in r.defaults else 0,
        scores_shared=t.scores_shared and shared > 0,
    )


def _shared(r: Reader, t: Traits, d_ff: int) -> tuple[int, int]:
    if t.shared == "none":
        return 0, 0
    if t.shared == "width":
        width = r.count("shared_expert_intermediate_size")
        return int(width > 0), width
    number = 1 if t.shared == "one" else r.count("n_shared_experts")
    if t.shared == "count of a width":
        return number, number * r.size("shared_expert_intermediate_size")
    return number, number * d_ff


def scaled_width(r: Reader, key: str, width: int) -> int:
    """A width that the number under `key` made; BadRequest for one that no width is."""
    if not 0 < width <= LIMIT:
        rule = f"it makes a width of {width:,}; a width must be 1 to {LIMIT:,}"
        raise r.error(key, r.number(key), rule)
    return width
