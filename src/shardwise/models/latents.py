"""Mixers and stacks of classes that attend to latents, to compressed entries, or to keys that an
indexer chooses; one function per class."""

from collections.abc import Mapping
from dataclasses import replace

from shardwise.models import blocks, patterns
from shardwise.models.blocks import Traits
from shardwise.models.reader import Reader
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
    Moe,
)


def indexed_latent(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """GLM-5, DeepSeek-V3.2: latent attention over chosen keys; "shared" layers reuse the choice."""
    layers = len(kinds)
    words = r.words("indexer_types", {"full": "full", "shared": "shared"}, layers)
    pattern = r.text("index_topk_pattern") if words is None else ""
    if pattern:
        if len(pattern) < layers or set(pattern) - set("FS"):
            rule = f"it must have an F (full) or an S (shared) for each of {layers} layers"
            raise r.error("index_topk_pattern", pattern, rule)
        words = ["full" if letter == "F" else "shared" for letter in pattern[:layers]]
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
    layers, own = len(kinds), r.by_layer()
    words = r.words("layer_types", _LATENT_WORDS, layers)
    if words is None:
        slides = r.flag("use_sliding_window")
        words = ["window" if slides and i > 1 and i % 4 != 1 else "full" for i in range(layers)]
    if own is None:
        indexed = "indexed" if r.flag("use_dsa") else "full"
        words = [word if word == "window" else indexed for word in words]
    made = [_dots_latent(r, word, (own or {}).get(i)) for i, word in enumerate(words)]
    return [replace(mixer, head_gate=True, rope_norm=True) for mixer in made]


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


def delta_or_indexed(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """GLM-5.3-Flash: Kimi Delta Attention, and latent attention over keys that are chosen by pools
    of `index_kpool` tokens; none of its keys rotates."""
    pool, delta = r.size("index_kpool"), blocks.kimi_delta(r, "channel", r.size("linear_head_dim"))
    made: list[Mixer] = [delta] * len(kinds)
    for place, mixer in enumerate(indexed_latent(r, kinds, t)):
        if kinds[place] != "linear" and isinstance(mixer, LatentAttention):
            own = mixer.indexer and replace(mixer.indexer, ratio=pool)
            made[place] = replace(mixer, indexer=own)
    return made


def rotated_or_not(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """Mistral Large 4: latent attention over chosen keys; in layers without positions (0 in
    `no_rope_layers`) the whole key comes from the latent."""
    layers, period = len(kinds), r.size("no_rope_layer_interval")
    rotary = r.integers("no_rope_layers", layers)
    sources = r.integers("kv_source_layers", layers)
    if sources is not None and sources != list(range(layers)):
        rule = "layers that read the latent of an earlier one are not modelled"
        raise r.error("kv_source_layers", sources, rule, "give every layer its own")
    flags = [(i + 1) % period for i in range(layers)] if rotary is None else rotary
    return [
        mixer
        if flag or not isinstance(mixer, LatentAttention)
        else replace(mixer, nope_head_dim=mixer.head_dim, rope_head_dim=0)
        for flag, mixer in zip(flags, indexed_latent(r, kinds, t), strict=True)
    ]


def chosen_blocks(r: Reader, kinds: list[str], t: Traits) -> list[Mixer]:
    """MiniMax-M3: in some layers an indexer chooses blocks of keys, by the best key of each."""
    layers, full = len(kinds), blocks.softmax(r, "full", t)
    words = {"minimax_m3_sparse": 1, "full_attention": 0}
    listed = r.words("layer_types", {word: word for word in words}, layers)
    if listed:
        flags = [words[word] for word in listed]
    else:
        flags = r.integers("sparse_layers", layers) or [0] * layers
    if not any(flags) or not isinstance(full, Attention) or not r.flag("use_sparse_attention"):
        return [full] * layers
    keys = r.size("index_topk_blocks") * r.size("index_block_size")
    indexer = Indexer(heads=r.size("index_n_heads"), head_dim=r.size("index_head_dim"), top_k=keys)
    chosen = replace(full, indexer=indexer)
    return [chosen if flag else full for flag in flags]


def delta_or_chosen(r: Reader, kind: str, t: Traits) -> Mixer:
    """Qwen4-Exp: Gated DeltaNet, and attention whose indexer, where its sizes are given, chooses
    blocks by the mean of their keys."""
    hashed = r.integers("ple_layer_ids")
    if hashed:
        rule = "layers with hashed embeddings of n-grams are not modelled"
        raise r.error("ple_layer_ids", hashed, rule, "leave them out to count the rest")
    mixer = blocks.gated_delta(r, kind, t)
    heads = r.size_or_none("indexer_n_heads")
    if heads is None or not isinstance(mixer, Attention):
        return mixer
    indexer = Indexer(
        heads=heads,
        head_dim=r.size("indexer_head_dim"),
        top_k=r.size("indexer_budget"),
        ratio=r.size("indexer_compress_ratio"),
    )
    return replace(mixer, indexer=indexer)
