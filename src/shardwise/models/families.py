"""Stacks and parts of the classes that do not fit the common keys; one function per class."""

import math
from collections.abc import Mapping
from dataclasses import replace

from shardwise.models import blocks, patterns
from shardwise.models.blocks import Traits
from shardwise.models.reader import LIMIT, Reader
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
    Moe,
)


def falcon_traits(r: Reader) -> Traits:
    """Falcon: one or two norms feed attention and MLP in parallel, by generation."""
    parallel = r.flag("new_decoder_architecture") or r.flag("parallel_attn")
    norms: tuple[str, ...] = ("attention", "mlp")
    two = r.size_or_none("num_ln_in_parallel_attn") or (
        2 if r.flag("new_decoder_architecture") else 1
    )
    if parallel and two == 1:
        norms = ("input",)
    return Traits(
        qkv_bias="bias",
        o_bias="bias",
        gated=False,
        mlp_bias="bias",
        norms=norms,
        norm_bias=True,
        parallel=parallel,
    )


def stablelm_traits(r: Reader) -> Traits:
    """StableLM: with parallel residuals attention and MLP share one norm."""
    parallel = r.flag("use_parallel_residual")
    return Traits(
        qkv_bias="use_qkv_bias",
        qk_norm="heads",
        qk_norm_if="qk_layernorm",
        norms=("input",) if parallel else ("attention", "mlp"),
        norm_bias=True,
        parallel=parallel,
    )


def falcon_attention(r: Reader, kind: str, t: Traits) -> Mixer:
    """Falcon: `num_kv_heads` counts only with the new decoder; before, one head or all of them."""
    heads = r.size("num_attention_heads")
    if r.flag("new_decoder_architecture"):
        kv_heads = blocks.check_heads(r, heads, r.size_or_none("num_key_value_heads") or heads)
    else:
        kv_heads = 1 if r.flag("multi_query") else heads
    bias = r.flag("bias")
    return blocks.attention(heads, kv_heads, blocks.head_dim_of(r, heads), bias, o_bias=bias)


def chatglm_attention(r: Reader, kind: str, t: Traits) -> Mixer:
    """ChatGLM: `multi_query_group_num` KV heads, if `multi_query_attention` says so."""
    heads = r.size("num_attention_heads")
    grouped = r.flag("multi_query_attention")
    kv_heads = r.size("num_key_value_heads") if grouped else heads
    return blocks.attention(
        heads,
        blocks.check_heads(r, heads, kv_heads),
        blocks.head_dim_of(r, heads),
        r.flag("add_qkv_bias"),
        o_bias=r.flag("add_bias_linear"),
    )


def bigcode_attention(r: Reader, kind: str, t: Traits) -> Mixer:
    """GPT-BigCode: one KV head with `multi_query`, else as many as queries have."""
    heads = r.size("num_attention_heads")
    kv_heads = 1 if r.flag("multi_query") else heads
    return blocks.attention(heads, kv_heads, blocks.head_dim_of(r, heads), True, o_bias=True)


def heads_by_layer(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """Laguna: the number of query heads may differ from layer to layer."""
    heads = r.integers("num_attention_heads_per_layer", len(kinds))
    mixers = [blocks.softmax(r, kind, t) for kind in kinds]
    if heads is None:
        return mixers
    return [
        replace(m, heads=n, kv_heads=blocks.check_heads(r, n, m.kv_heads))
        for m, n in zip(mixers, heads, strict=True)
        if isinstance(m, Attention)
    ]


def minimax_m3_traits(r: Reader) -> Traits:
    """MiniMax-M3: refuses its block-sparse attention, whose indexer is not modelled."""
    if r.has("sparse_attention_config"):
        key, rule = "sparse_attention_config", "its indexer is not modelled"
        raise r.error(key, r.get(key), rule, "only the class with dense attention is read")
    return Traits(qk_norm="head", shared="width")


def laguna_traits(r: Reader) -> Traits:
    """Laguna: `gating` gates heads, else every element of the output is gated."""
    by_head = r.get("gating") in (True, "per-head")
    return Traits(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        qk_norm="head",
        head_gate=by_head,
        output_gate=not by_head,
        gate_bias="none",
        selection_bias=True,
        shared="width",
    )


def hyperclova_traits(r: Reader) -> Traits:
    """HyperCLOVA X: a second pair of norms, after attention and MLP, with `use_post_norm`."""
    norms = ("attention", "post_attention", "mlp", "post_mlp")
    return Traits(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
        norms=norms if r.flag("use_post_norm") else ("attention", "mlp"),
    )


def lfm3_traits(r: Reader) -> Traits:
    """LFM3: a gate per head, and a second pair of norms with `use_sandwich_norm`."""
    norms = ("attention", "post_attention", "mlp", "post_mlp")
    return Traits(
        qk_norm="head",
        head_gate="use_attention_gate",
        norms=norms if r.flag("use_sandwich_norm") else ("attention", "mlp"),
    )


def shared_alone(r: Reader, t: Traits) -> Mlp:
    """Granite 4 without experts: the MLP that others have beside them."""
    return Mlp(d_ff=r.size("shared_expert_intermediate_size"))


def qwen_mlp(r: Reader, t: Traits) -> Mlp:
    """Qwen v1, RecurrentGemma: `intermediate_size` is the width of gate and up together."""
    both = r.size("intermediate_size")
    if both % 2:
        raise r.error("intermediate_size", both, "it holds gate and up together and must be even")
    return Mlp(d_ff=both // 2, bias=blocks.switch(r, t.mlp_bias))


def lfm2_mlp(r: Reader, t: Traits) -> Mlp:
    """LFM2: F is two thirds of the stated width, times a multiplier, rounded up to a multiple."""
    d_ff = r.size("intermediate_size")
    if r.flag("block_auto_adjust_ff_dim"):
        unit = r.size("block_multiple_of")
        scaled = int(r.number("block_ffn_dim_multiplier") * int(2 * d_ff / 3))
        d_ff = unit * -(-scaled // unit)
        return Mlp(d_ff=_scaled_width(r, "block_ffn_dim_multiplier", d_ff))
    return Mlp(d_ff=d_ff)


def _scaled_width(r: Reader, key: str, width: int) -> int:
    """A width that the number under `key` made; BadRequest for one that no width is."""
    if not 0 < width <= LIMIT:
        rule = f"it makes the MLP {width:,} wide, and a width is 1 to {LIMIT:,}"
        raise r.error(key, r.number(key), rule)
    return width


def mimo_attention(r: Reader, kind: str, t: Traits) -> Mixer:
    """MiMo-V2: sliding layers have their own heads and dims; sinks on one kind or both."""
    prefix = "swa_" if kind == "window" else ""
    sinks = "add_swa_attention_sink_bias" if prefix else "add_full_attention_sink_bias"
    heads = r.size(f"{prefix}num_attention_heads")
    window = blocks.window_of(r, kind)
    bias = r.flag("attention_bias")
    return Attention(
        kind="window" if window else "full",
        heads=heads,
        kv_heads=blocks.check_heads(r, heads, r.size(f"{prefix}num_key_value_heads")),
        head_dim=r.size(f"{prefix}head_dim"),
        v_head_dim=r.size(f"{prefix}v_head_dim"),
        window=window,
        q_bias=bias,
        kv_bias=bias,
        qk_norm=t.qk_norm,
        output_gate=blocks.switch(r, t.output_gate),
        gate_bias=t.gate_bias,
        sinks=sinks in r.defaults and r.flag(sinks),
    )


def chosen_heads(r: Reader, kind: str, t: Traits) -> Mixer:
    """JetMoe: of every expert's queries a token uses those of the chosen, on shared keys."""
    kv_heads, experts, chosen = (
        r.size(key) for key in ("num_key_value_heads", "num_experts", "num_experts_per_tok")
    )
    full = blocks.attention(kv_heads * chosen, kv_heads, r.size("head_dim"))
    return replace(full, query_experts=experts)


def half_window(r: Reader, kind: str, t: Traits) -> Mixer:
    """ModernBERT's decoder sees the past half of `local_attention`."""
    full = blocks.softmax(r, "full", t)
    both = r.size_or_none("local_attention") if kind == "window" else None
    if both is None or not isinstance(full, Attention):
        return full
    return replace(full, kind="window", window=both // 2)


def mllama_attention(r: Reader, kind: str, t: Traits) -> Mixer:
    """Llama 3.2 Vision: cross-attention layers norm queries and keys, the others do not."""
    if kind == "cross":
        return blocks.attention(*blocks.heads_of(r), kind="cross", qk_norm="head")
    return blocks.attention(*blocks.heads_of(r))


def indexed_latent(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """GLM-5, DeepSeek-V3.2: latent attention over chosen keys; "shared" layers reuse the choice."""
    layers = len(kinds)
    words = r.words("indexer_types", {"full": "full", "shared": "shared"}, layers)
    if words is None:
        freq, offset = r.size("index_topk_freq"), r.count("index_skip_topk_offset")
        words = ["shared" if max(i - offset + 1, 0) % freq else "full" for i in range(layers)]
    indexer = blocks.indexer_of(r)
    reused = replace(blocks.latent(r, "full", t), sparse_top_k=indexer.top_k)
    own = replace(reused, indexer=indexer)
    return [own if word == "full" else reused for word in words]


def gated_norm_stack(r: Reader, layers: int) -> list[Layer]:
    """A.X K2: every layer has an indexer; gates on the norms before attention and experts."""
    t = Traits(qkv_bias="attention_bias", shared="count")
    mixer = replace(indexed_latent(r, ["full"] * layers, t)[0], query_gate=True)
    rank, mlp, moe = r.size("gated_norm_rank"), blocks.dense(r, t), blocks.experts(r, t)
    both = ("attention", "mlp")
    dense = Layer(mixer=mixer, mlp=mlp, norms=both, gated_norms=("attention",), norm_gate_rank=rank)
    sparse = Layer(mixer=mixer, mlp=moe, norms=both, gated_norms=both, norm_gate_rank=rank)
    return [sparse if kind == "sparse" else dense for kind in patterns.first_dense(r, layers)]


_LATENT_WORDS = {
    "indexed_attention": "indexed",
    "full_attention": "full",
    "sliding_attention": "window",
}


def windowed_latent(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """dots3: latent attention of two widths; an indexer chooses keys, or a window slides.

    `per_layer_config` holds what is other in a layer. Configs without it spell the widths of the
    sliding layers `swa_...`, and call layers with an indexer "full_attention".
    """
    layers, own = len(kinds), _by_layer(r)
    words = r.words("layer_types", _LATENT_WORDS, layers)
    if words is None:
        slides = r.flag("use_sliding_window")
        words = ["window" if slides and i > 1 and i % 4 != 1 else "full" for i in range(layers)]
    if own is None:
        indexed = "indexed" if r.flag("use_dsa") else "full"
        words = [word if word == "window" else indexed for word in words]
    made = [_dots_latent(r, word, (own or {}).get(i)) for i, word in enumerate(words)]
    return [replace(mixer, head_gate=True, rope_norm=True) for mixer in made]


def _by_layer(r: Reader) -> dict[int, Mapping[str, object]] | None:
    sections = r.get("per_layer_config")
    if sections is None:
        return None
    fits = isinstance(sections, Mapping) and all(
        str(key).isdecimal() and isinstance(value, Mapping) for key, value in sections.items()
    )
    if not fits:
        rule = "it must be an object that has an object by the number of a layer"
        raise r.error("per_layer_config", sections, rule)
    return {int(key): value for key, value in sections.items()}


def _dots_latent(r: Reader, word: str, own: Mapping[str, object] | None) -> LatentAttention:
    if own is None and word == "window":
        own = {name: r.size(f"swa_{name}") for name in _WIDTHS}
        own["qk_rope_head_dim"] = r.size("swa_head_dim") - r.size("swa_qk_nope_head_dim")
    at = replace(r, raw={**r.raw, **(own or {})})
    mixer = blocks.latent(at, word, Traits(qkv_bias="attention_bias"))
    if word == "window":
        return replace(mixer, window=blocks.window_of(at, word))
    indexer = blocks.indexer_of(at) if word == "indexed" else None
    return replace(mixer, indexer=indexer, sparse_top_k=indexer and indexer.top_k)


_WIDTHS = ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
"""What the sliding layers of dots3 have of their own."""


def product_key_mlps(r: Reader, kinds: list[str], t: Traits) -> list[Mlp | Moe]:
    """Doge: with experts, rows that product keys find, beside the MLP that is there without."""
    dense = blocks.dense(r, t)
    if "sparse" not in kinds:
        return [dense] * len(kinds)
    moe = Moe(
        experts=r.size("num_experts"),
        experts_per_token=r.size("num_experts_per_tok"),
        d_ff=1,
        shared_experts=1,
        shared_d_ff=dense.d_ff,
        shared_bias=dense.bias,
        product_keys=True,
    )
    if moe.experts_per_token > moe.experts:
        rule = f"there are only {moe.experts} experts to choose"
        raise r.error("num_experts_per_tok", moe.experts_per_token, rule)
    return [moe] * len(kinds)


def deepseek_v4_mixers(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """DeepSeek-V4: by layer a window alone (ratio 0), and entries of `ratio` tokens each."""
    ratios = _compress_ratios(r, len(kinds))
    heads, groups = r.size("num_attention_heads"), r.size("o_groups")
    if heads % groups:
        raise r.error("o_groups", groups, f"it must divide num_attention_heads, {heads}")
    sparse_ratio = r.size("compress_rate_csa")
    made = {
        ratio: CompressedAttention(
            heads=heads,
            head_dim=r.size("head_dim"),
            rope_head_dim=r.size("qk_rope_head_dim"),
            q_lora_rank=r.size("q_lora_rank"),
            window=r.size("sliding_window"),
            ratio=ratio,
            o_groups=groups,
            o_lora_rank=r.size("o_lora_rank"),
            indexer=blocks.indexer_of(r, ratio) if ratio == sparse_ratio else None,
        )
        for ratio in dict.fromkeys(ratios)
    }
    return [made[ratio] for ratio in ratios]


def _compress_ratios(r: Reader, layers: int) -> list[int]:
    sparse, heavy = r.size("compress_rate_csa"), r.size("compress_rate_hca")
    words = {
        "sliding_attention": 0,
        "compressed_sparse_attention": sparse,
        "heavily_compressed_attention": heavy,
    }
    listed = r.words("layer_types", {word: word for word in words}, layers)
    if listed:
        return [words[word] for word in listed]
    ratios = r.integers("compress_ratios", layers, longer=True)
    if ratios is None:
        return [sparse if i >= 2 and i % 2 else heavy for i in range(layers)]
    for ratio in ratios:
        if ratio not in words.values():
            raise r.error("compress_ratios", ratio, f"each entry must be 0, {sparse} or {heavy}")
    return ratios


def deepseek_v4_mlps(r: Reader, kinds: list[str], t: Traits) -> list[Mlp | Moe]:
    """DeepSeek-V4: experts everywhere; the first `num_hash_layers` choose them by token id."""
    hashed = r.count("num_hash_layers")
    base = blocks.experts(r, t)
    by_id = replace(base, hash_routed=True)
    return [by_id if i < hashed else base for i in range(len(kinds))]


def gemma4_stack(r: Reader, layers: int) -> list[Layer]:
    """Gemma 4: global layers have their own head dim and KV heads, the last layers reuse KV."""
    words = {"sliding_attention": "window", "full_attention": "full"}
    listed = r.words("layer_types", words, layers)
    kinds = listed or ["window" if (i + 1) % 6 else "full" for i in range(layers)]
    kinds[-1] = "full"
    shared = _kv_shared(r, layers)
    norms = ("attention", "post_attention", "mlp", "post_mlp")
    if r.flag("enable_moe_block"):
        norms += ("experts", "post_dense", "post_experts")
    made = {
        key: Layer(
            mixer=_gemma4_attention(r, *key),
            mlp=_gemma4_mlp(r, key[1]),
            norms=norms,
            per_layer_input=r.count("hidden_size_per_layer_input"),
        )
        for key in dict.fromkeys((kinds[i], i >= layers - shared) for i in range(layers))
    }
    return [made[kinds[i], i >= layers - shared] for i in range(layers)]


def _kv_shared(r: Reader, layers: int) -> int:
    """How many of the last layers use keys and values of earlier ones."""
    shared = r.count("num_kv_shared_layers")
    if shared >= layers:
        raise r.error("num_kv_shared_layers", shared, f"it must be less than {layers}, the layers")
    return shared


def gemma3n_stack(r: Reader, layers: int) -> list[Layer]:
    """Gemma 3n: AltUp's streams, a pair of low rank beside attention, embeddings of every layer;
    the last layers reuse KV, and `intermediate_size` may list a width per layer."""
    t = Traits(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head")
    kinds = patterns.every("sliding_window_pattern", "window")(r, layers)
    first = layers - _kv_shared(r, layers)
    if isinstance(r.get("intermediate_size"), list):
        widths = r.integers("intermediate_size", layers) or []
    else:
        widths = [r.size("intermediate_size")] * layers
    built = {kind: blocks.softmax(r, kind, t) for kind in dict.fromkeys(kinds)}
    mixers = {kind: m for kind, m in built.items() if isinstance(m, Attention)}
    shape = Layer(
        mixer=None,
        mlp=None,
        norms=("attention", "post_attention", "mlp", "post_mlp"),
        per_layer_input=r.size("hidden_size_per_layer_input"),
        streams=r.size("altup_num_inputs"),
        mixing="altup",
        laurel_rank=r.size("laurel_rank"),
    )
    return [
        replace(
            shape,
            mixer=replace(mixers[kind], reuses_kv=i >= first),
            mlp=Mlp(d_ff=width),
        )
        for i, (kind, width) in enumerate(zip(kinds, widths, strict=True))
    ]


def _gemma4_attention(r: Reader, kind: str, reuses_kv: bool) -> Mixer:
    heads, kv_heads, head_dim = blocks.heads_of(r)
    one_projection = kind == "full" and r.flag("attention_k_eq_v")
    if kind == "full":
        head_dim = r.size("global_head_dim")
        if one_projection:
            kv_heads = r.size_or_none("num_global_key_value_heads") or kv_heads
    window = blocks.window_of(r, kind)
    bias = r.flag("attention_bias")
    return blocks.attention(
        heads,
        blocks.check_heads(r, heads, kv_heads),
        head_dim,
        bias,
        kind="window" if window else "full",
        window=window,
        o_bias=bias,
        qk_norm="head",
        key_is_value=one_projection,
        reuses_kv=reuses_kv,
    )


def _gemma4_mlp(r: Reader, reuses_kv: bool) -> Mlp | Moe:
    wide = 2 if reuses_kv and r.flag("use_double_wide_mlp") else 1
    dense = Mlp(d_ff=r.size("intermediate_size") * wide)
    if not r.flag("enable_moe_block"):
        return dense
    return replace(blocks.experts(r, Traits()), router_scales=True, dense=dense)


def post_normed_experts(r: Reader, layers: int) -> list[Layer]:
    """A.X K1: latent attention; layers with experts norm their sum, too."""
    t = Traits(qkv_bias="attention_bias", shared="count")
    mixer, mlp, moe = blocks.latent(r, "full", t), blocks.dense(r, t), blocks.experts(r, t)
    two = Layer(mixer=mixer, mlp=mlp, norms=("attention", "mlp"))
    three = Layer(mixer=mixer, mlp=moe, norms=("attention", "mlp", "post_mlp"))
    return [three if kind == "sparse" else two for kind in patterns.first_dense(r, layers)]


def shortcut_experts(r: Reader, layers: int) -> list[Layer]:
    """LongCat-Flash: two blocks of attention and MLP a layer, and experts that read what the first
    MLP reads; their result joins the stream after the second."""
    t = Traits(qkv_bias="attention_bias", idle="zero_expert_num")
    mixer, mlp, moe = blocks.latent(r, "full", t), blocks.dense(r, t), blocks.experts(r, t)
    norms = ("attention", "mlp")
    first = Layer(mixer=mixer, mlp=replace(moe, dense=mlp), norms=norms)
    return [first, Layer(mixer=mixer, mlp=mlp, norms=norms)] * (layers // 2)


def twice(r: Reader) -> int:
    """The number of blocks where a layer of the class has two."""
    return r.checked("num_hidden_layers", 2 * r.size("num_hidden_layers"), "num_hidden_layers")


def deci_stack(r: Reader, layers: int) -> list[Layer]:
    """Nemotron-NAS: `block_configs` says layer by layer what attention and MLP remain."""
    entries = r.get("block_configs")
    if not isinstance(entries, list) or len(entries) != layers:
        raise r.error("block_configs", entries, f"it must be a list of {layers} entries")
    return [_deci_block(r, entry, f"block_configs[{i}]") for i, entry in enumerate(entries)]


def _deci_block(r: Reader, entry: object, where: str) -> Layer:
    if not isinstance(entry, Mapping):
        raise r.error(where, entry, "it must be an object {...}")
    parts = {}
    for part in ("attention", "ffn"):
        section = Reader(
            file=r.file,
            raw=entry,
            defaults_source=r.defaults_source,
            defaulted=r.defaulted,
            missing=r.missing,
            stand_in=r.stand_in,
            path=f"{r.path}{where}.",
        ).section(part, {"no_op": False, "replace_with_linear": False, "window_length": None})
        section.refuse("replace_with_linear", True, "a layer replaced by one matrix")
        parts[part] = None if section.flag("no_op") else section
    attention, ffn = parts["attention"], parts["ffn"]
    mixer, mlp, norms = None, None, ()
    if attention is not None:
        heads = r.size("num_attention_heads")
        shared = attention.size("n_heads_in_group")
        kv_heads = heads // shared
        if not kv_heads:
            raise attention.error("n_heads_in_group", shared, f"the model has {heads} heads")
        mixer = blocks.attention(heads, kv_heads, blocks.head_dim_of(r, heads))
        norms += ("attention",)
    if ffn is not None:
        # The width is two thirds of ffn_mult times D, rounded up to a multiple of 256.
        d_ff = int(2 * ffn.number("ffn_mult") * r.size("hidden_size") / 3)
        mlp = Mlp(d_ff=_scaled_width(ffn, "ffn_mult", 256 * math.ceil(d_ff / 256)))
        norms += ("mlp",)
    return Layer(mixer=mixer, mlp=mlp, norms=norms)
