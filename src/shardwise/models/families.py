"""Stacks and parts of the classes that do not fit the common keys; one function per class."""

import math
from collections.abc import Mapping
from dataclasses import replace

from shardwise.models import blocks, patterns
from shardwise.models.blocks import Traits
from shardwise.models.reader import Reader
from shardwise.models.specs import Attention, Layer, Mixer, Mlp, Moe


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


def sliding_heads(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """Step 3.5 and 3.7: layers with a window have a number of query heads of their own. The list
    of kinds goes on with layers for multi-token prediction, which are not part of the stack."""
    listed = r.words("layer_types", patterns.MIXER_WORDS, len(kinds), longer=True) or kinds
    made = {kind: blocks.softmax(r, kind, t) for kind in dict.fromkeys(listed)}
    mixers = [mixer for kind in listed if isinstance(mixer := made[kind], Attention)]
    heads = r.size_or_none("num_sliding_attention_heads")
    own = r.by_layer() or {}
    for place, mixer in enumerate(mixers):
        said = own.get(place, {}).get("num_attention_heads", heads)
        if isinstance(said, int) and listed[place] == "window":
            kv_heads = blocks.check_heads(r, said, mixer.kv_heads)
            mixers[place] = replace(mixer, heads=said, kv_heads=kv_heads)
    return list(mixers)


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


def step_traits(r: Reader) -> Traits:
    """Step 3.5 and 3.7: Laguna's, with a bias of the choice that is not a parameter."""
    return replace(laguna_traits(r), selection_bias=False)


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
        return Mlp(d_ff=blocks.scaled_width(r, "block_ffn_dim_multiplier", d_ff))
    return Mlp(d_ff=d_ff)


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
        rule = f"the model has only {moe.experts} experts"
        raise r.error("num_experts_per_tok", moe.experts_per_token, rule)
    return [moe] * len(kinds)


def pooled_experts(r: Reader, kinds: list[str], t: Traits) -> list[Mlp | Moe]:
    """Muse Spark: experts work in `moe_hidden_size`, with a norm before and after them."""
    dense = blocks.dense(r, t)
    if "sparse" not in kinds:
        return [dense] * len(kinds)
    moe = replace(blocks.experts(r, t), latent_dim=r.size("moe_hidden_size"), latent_norm=True)
    return [moe if kind == "sparse" else dense for kind in kinds]


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
        replace(shape, mixer=replace(mixers[kind], reuses_kv=i >= first), mlp=Mlp(d_ff=width))
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
        usual = {"no_op": False, "replace_with_linear": False, "window_length": None}
        section = r.within(entry, f"{r.path}{where}.", {}).section(part, usual)
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
        mlp = Mlp(d_ff=blocks.scaled_width(ffn, "ffn_mult", 256 * math.ceil(d_ff / 256)))
        norms += ("mlp",)
    return Layer(mixer=mixer, mlp=mlp, norms=norms)
