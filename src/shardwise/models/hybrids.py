"""Recurrent mixers of their own keys: Nemotron-H, Mamba, Zamba, Kimi, Bailing, xLSTM and others."""

from dataclasses import replace

from shardwise.models import blocks, patterns
from shardwise.models.blocks import Traits
from shardwise.models.reader import Reader
from shardwise.models.specs import Layer, Mamba, Mixer, Mlp, Recurrence

_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_NEMOTRON_WORDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "moe": "moe",
    "mlp": "mlp",
}


def nemotron_stack(r: Reader, layers: int) -> list[Layer]:
    """Nemotron-H: every block is one of Mamba-2, attention, experts or MLP, with one norm."""
    words = r.words("layers_block_type", _NEMOTRON_WORDS, layers)
    if words is None:
        pattern = r.text("hybrid_override_pattern")
        if len(pattern) != layers or set(pattern) - set(_NEMOTRON_LETTERS):
            rule = f"it must have one of M * E - for each of the {layers} layers"
            raise r.error("hybrid_override_pattern", pattern, rule)
        words = [_NEMOTRON_LETTERS[letter] for letter in pattern]
    made = {word: _nemotron_block(r, word) for word in dict.fromkeys(words)}
    return [made[word] for word in words]


def nemotron_layers(r: Reader) -> int:
    """Number of blocks: the length of the pattern where `num_hidden_layers` is left out."""
    if r.has("num_hidden_layers"):
        return r.size("num_hidden_layers")
    listed = r.get("layers_block_type")
    text = listed if isinstance(listed, list) else r.text("hybrid_override_pattern")
    return r.checked("hybrid_override_pattern", len(text), "num_hidden_layers")


def _nemotron_block(r: Reader, word: str) -> Layer:
    t = Traits(gated=False, mlp_bias="mlp_bias", shared="width")
    if word == "mamba":
        mixer = Mamba(
            heads=r.size("mamba_num_heads"),
            head_dim=r.size("mamba_head_dim"),
            groups=r.size("n_groups"),
            state=r.size("ssm_state_size"),
            conv_width=r.size("conv_kernel"),
            conv_bias=r.flag("use_conv_bias"),
            proj_bias=r.flag("use_bias"),
        )
        return Layer(mixer=mixer, mlp=None, norms=("mixer",))
    if word == "attention":
        return Layer(mixer=blocks.softmax(r, "full", t), mlp=None, norms=("mixer",))
    if word == "mlp":
        return Layer(mixer=None, mlp=blocks.dense(r, t), norms=("mixer",))
    routed = replace(blocks.experts(r, t), latent_dim=r.count("moe_latent_size"))
    return Layer(mixer=None, mlp=routed, norms=("mixer",))


def scan_stack(r: Reader, layers: int) -> list[Layer]:
    """Mamba and Mamba-2 alone: one norm and one mixer a layer, no MLP."""
    first = "mamba_n_heads" in r.keys
    mixer = (blocks.mamba2 if first else blocks.selective_scan)(r, "linear", Traits())
    return [Layer(mixer=mixer, mlp=None, norms=("mixer",))] * layers


def attention_beside_mamba(r: Reader, layers: int) -> list[Layer]:
    """Falcon-H1: in every layer attention and Mamba-2 read one norm and are added up."""
    t = Traits(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
    scan = blocks.mamba2(r, "linear", t)
    assert isinstance(scan, Mamba)
    scan = replace(scan, out_bias=r.flag("projectors_bias"), norm=r.flag("mamba_rms_norm"))
    mixer, mlp = blocks.softmax(r, "full", t), blocks.dense(r, t)
    return [Layer(mixer=mixer, mlp=mlp, norms=("attention", "mlp"), beside=scan)] * layers


def cycled_layers(r: Reader) -> int:
    """HRM: passes through a layer, of both stacks in all cycles. A config without
    `num_layers_per_stack` has one stack's layers under `num_hidden_layers`."""
    one = r.size_or_none("num_layers_per_stack") or r.size("num_hidden_layers")
    return r.checked("H_cycles", one * _cycles(r), "num_hidden_layers")


def _cycles(r: Reader) -> int:
    return r.size("H_cycles") * (r.size("L_cycles") + 1)


def cycled_stacks(r: Reader, layers: int) -> list[Layer]:
    """HRM: `H_cycles` times `L_cycles` passes through the low stack and one through the high one.

    The first pass of either has the tensors; the others use them again, with a cache of their own.
    """
    t = Traits(
        qkv_bias="attention_bias", o_bias="attention_bias", output_gate=True, mlp_bias="mlp_bias"
    )
    layer = Layer(mixer=blocks.softmax(r, "full", t), mlp=blocks.dense(r, t), norms=())
    first, low = layers // _cycles(r), r.size("L_cycles")
    again = replace(layer, reused=True)
    return [
        layer if i // first in (0, low) else again  # the low stack's first pass, the high one's
        for i in range(layers)
    ]


_ZAMBA_WORDS = {"mamba": "mamba", "mamba2": "mamba", "linear_attention": "mamba"}
_ZAMBA_WORDS |= {"hybrid": "hybrid", "m": "mamba", "g": "hybrid"}


def zamba_stack(r: Reader, layers: int) -> list[Layer]:
    """Zamba: Mamba layers, before some of them a block of attention and MLP on the stream and the
    embedding. There are `num_mem_blocks` such blocks, which take turns."""
    words = r.words("layers_block_type", _ZAMBA_WORDS, layers) or _zamba_words(r, layers)
    (mamba,) = scan_stack(r, 1)
    heads, kv_heads, _ = blocks.heads_of(r)
    head_dim = r.size_or_none("head_dim") or 2 * r.size("hidden_size") // heads
    mixer = replace(blocks.attention(heads, kv_heads, head_dim), input_copies=2)
    mlp = blocks.dense(r, Traits(mlp_bias="mlp_bias"))
    block = Layer(mixer=mixer, mlp=mlp, norms=("mlp",))
    stack, uses = [], 0
    for word in words:
        if word == "hybrid":
            stack.append(replace(block, reused=uses >= r.size("num_mem_blocks")))
            uses += 1
        stack.append(mamba)
    return stack


def _zamba_words(r: Reader, layers: int) -> list[str]:
    period, place = r.size("attn_layer_period"), r.count("attn_layer_offset")
    rest = ["hybrid" if i % period == place else "mamba" for i in range(layers)]
    return ["mamba", "mamba", "hybrid", *rest][:layers]


def matrix_memory(r: Reader, kind: str, t: Traits) -> Mixer:
    """xLSTM: heads with a matrix of keys times values each."""
    heads = r.size("num_heads")
    keys, values = (_share(r, key) // heads for key in ("qk_dim_factor", "v_dim_factor"))
    return Recurrence(heads=heads, head_dim=keys, v_head_dim=values)


def xlstm_mlp(r: Reader, t: Traits) -> Mlp:
    """xLSTM: F is a factor times D, rounded up to a multiple."""
    width = _share(r, "ffn_proj_factor", r.size("ffn_round_up_to_multiple_of"))
    return Mlp(d_ff=width, bias=blocks.switch(r, t.mlp_bias))


def _share(r: Reader, key: str, unit: int = 1) -> int:
    """The number under `key` times D, rounded up to a multiple of `unit` (down where that is 1)."""
    width = int((r.size("hidden_size") * r.number(key) + unit - 1) // unit * unit)
    return blocks.scaled_width(r, key, width)


def gated_recurrence(r: Reader, kind: str, t: Traits) -> Mixer:
    """RecurrentGemma: an RG-LRU where `kind` is "linear", else attention within a window."""
    if kind != "linear":
        return blocks.softmax(r, kind, t)
    heads = r.size("num_attention_heads")
    width = (r.size_or_none("lru_width") or r.size("hidden_size")) // heads
    return Recurrence(heads=heads, head_dim=width, v_head_dim=width)


def weighted_sums(r: Reader, kind: str, t: Traits) -> Mixer:
    """RWKV-4: every channel has a running weighted mean of its own."""
    width = r.size_or_none("attention_hidden_size") or r.size("hidden_size")
    return Recurrence(heads=width, head_dim=1, v_head_dim=1)


def kimi_stack(r: Reader, layers: int) -> list[Layer]:
    """Kimi Linear and K3: Kimi Delta Attention in the listed layers (numbered from 1), else MLA."""
    kinds = r.words("layer_types", patterns.MIXER_WORDS, layers)
    places = {i - 1 for i in r.integers("kda_layers") or []}
    linear = [kind == "linear" for kind in kinds] if kinds else [i in places for i in range(layers)]
    sparse = patterns.first_dense(r, layers)
    full_rank = r.flag("use_full_rank_gate")
    delta = blocks.kimi_delta(r, "channel", 0 if full_rank else r.size("linear_head_dim"))
    t = Traits(output_gate="mla_use_output_gate", shared="count")
    latent = blocks.latent(r, "full", t)
    width = r.count("routed_expert_hidden_size")
    moe = replace(
        blocks.experts(r, t),
        latent_dim=width,
        latent_norm=width > 0 and r.flag("latent_moe_use_norm"),
    )
    mlp = blocks.dense(r, t)
    residual = r.size_or_none("attn_res_block_size") is not None
    return [
        Layer(
            mixer=delta if linear[i] else latent,
            mlp=moe if sparse[i] == "sparse" else mlp,
            norms=("attention", "mlp"),
            attention_residual=residual,
        )
        for i in range(layers)
    ]


def delta_or_latent(r: Reader, kind: str, t: Traits) -> Mixer:
    """Bailing (Ling 2.5): Kimi Delta Attention where `kind` is "linear", else MLA."""
    return blocks.kimi_delta(r, "full", 0) if kind == "linear" else blocks.latent(r, kind, t)
