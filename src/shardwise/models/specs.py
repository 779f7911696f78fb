"""What one layer is made of: a mixer (attention or recurrence), an MLP, and its norms.

All values are whole dimensions, in elements; `d_model` itself is the model's, not the layer's.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

ExtraRole = Literal["matmul", "norm", "bias", "scan", "conv", "scale", "state"]
"""What an `Extra` is: a role of a tensor, or "state", values kept per sequence and no tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A tensor that a class has beside those of its mixers and MLPs (a row of `extras`).

    `dims` are by letters, `sums` those that a matmul sums over, `batch` those of which each has a
    product of its own. A convolution has the letter W. `shares` names the tensor whose storage this
    one uses. `flops` is what a token costs per value of a "state".
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    role: ExtraRole
    sums: str = ""
    batch: str = ""
    shares: str = ""
    flops: float = 0.0

    @property
    def size(self) -> int:
        """Elements."""
        return prod(n for _, n in self.dims)

    @property
    def kept(self) -> int:
        """Values kept per sequence: of a convolution the last W - 1 of its inputs."""
        if self.role == "state":
            return self.size
        dims = dict(self.dims)
        read = self.sums + self.batch if self.sums else "".join(dims).replace("W", "")
        width = dims.get("W", 1)
        return (width - 1) * prod(n for letter, n in self.dims if letter in read and letter != "W")

    @property
    def scan_flops(self) -> float:
        """Forward FLOPs per token of a state or a depthwise convolution; matmuls are rows."""
        if self.role == "state":
            return self.flops * self.size
        return 2.0 * self.size if self.role == "conv" else 0.0


Mixing = Literal["hyper", "mean", "altup", "extras"]
"""How residual streams are mixed."""

QkNorm = Literal["none", "head", "heads", "full"]
"""Norm on queries and keys: shared by the heads [H], one per head [N, H], or over all heads."""


GateBias = Literal["queries", "heads", "none"]
"""What is added to the projection of an output gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Picks the `top_k` keys that a query attends to, with small heads and a key cache of its own.

    `ratio` is the number of tokens behind one indexed entry (1: every token has one). `top_k`
    counts entries where compressed attention chooses them, else tokens.
    """

    heads: int
    head_dim: int
    top_k: int
    ratio: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with N query heads and K key/value heads.

    `window` is the number of keys a query sees where `kind` is "window" (sliding) or "chunk"
    (aligned blocks), and None where it sees them all. `reuses_kv` marks a layer that reads the
    cache of an earlier layer: it has no K and V projections and caches nothing. "cross" attends
    to the tokens of an image, not to the text. `output_gate` multiplies the output elementwise by a
    projection of the input, biased as the queries are, by a number per head ("heads"), or not at
    all (`gate_bias`); `head_gate` has one number per head. `out_norm` norms what the output
    projection reads. `differential` attends twice, to either half of the values, and subtracts
    (Differential Transformer, arXiv 2410.05258). `chosen_keys` is how many keys a mask that is made
    of the values leaves of each KV head (dynamic mask attention, arXiv 2508.02124). `input_copies`
    is 2 where it reads the embedding beside the stream (Zamba). Of `query_experts` a token uses as
    many as there are heads over KV heads (JetMoe). An `indexer` chooses blocks of keys (MiniMax-M3,
    Qwen4-Exp).
    """

    kind: Literal["full", "window", "chunk", "cross"]
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    q_bias: bool = False
    kv_bias: bool = False
    o_bias: bool = False
    qk_norm: QkNorm = "none"
    qk_norm_bias: bool = False
    output_gate: bool = False
    gate_bias: GateBias = "queries"
    head_gate: bool = False
    out_norm: bool = False
    sinks: bool = False
    key_is_value: bool = False
    reuses_kv: bool = False
    differential: bool = False
    chosen_keys: int | None = None
    input_copies: int = 1
    query_experts: int = 0
    indexer: Indexer | None = None

    @property
    def gated(self) -> bool:
        """Whether something multiplies the output before its projection."""
        return self.output_gate or self.head_gate


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): K and V are made from one latent.

    The cache holds `kv_lora_rank + rope_head_dim` values per token. `q_lora_rank` is None where
    queries come straight from the residual stream. `sparse_top_k` is the number of keys a query
    attends to where an indexer chooses them (its own, or that of an earlier layer), `window` that
    of a sliding layer. `rope_norm` norms the part of the key that rotates. `query_gate` makes the
    queries, and with them a gate on every element of the output, of the query latent both before
    and after its norm (A.X K2).
    """

    kind: Literal["latent"] = "latent"
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    bias: bool = False
    output_gate: bool = False
    head_gate: bool = False
    head_sinks: bool = False
    indexer: Indexer | None = None
    sparse_top_k: int | None = None
    window: int | None = None
    rope_norm: bool = False
    query_gate: bool = False

    @property
    def gated(self) -> bool:
        """Whether something multiplies the output before its projection."""
        return self.output_gate or self.head_gate or self.query_gate

    @property
    def head_dim(self) -> int:
        """Width of one query head: the part without and the part with rotation."""
        return self.nope_head_dim + self.rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """DeepSeek-V4 attention: one shared K=V entry per token in a window, and compressed entries.

    `ratio` tokens become one compressed entry (0: the layer has the window only). Where there is an
    indexer, neighbouring entries overlap, so the compressor is twice as wide. The output projection
    works in `o_groups` groups of heads, each down to `o_lora_rank`.
    """

    kind: Literal["compressed"] = "compressed"
    heads: int
    head_dim: int
    rope_head_dim: int
    q_lora_rank: int
    window: int
    ratio: int
    o_groups: int
    o_lora_rank: int
    indexer: Indexer | None = None

    @property
    def v_head_dim(self) -> int:
        """Keys and values are one entry."""
        return self.head_dim

    @property
    def kv_heads(self) -> int:
        """One entry serves every query head."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """Mamba-2: `heads` of `head_dim` with a state of `state` per channel; B and C in `groups`.

    `proj_bias` is on the projections, `out_bias` on the one out where that differs, and `norm` on
    what it reads.
    """

    kind: Literal["mamba"] = "mamba"
    heads: int
    head_dim: int
    groups: int
    state: int
    conv_width: int
    conv_bias: bool
    proj_bias: bool
    out_bias: bool | None = None
    norm: bool = True

    @property
    def conv_elements(self) -> int:
        """Values kept per sequence: the last inputs of the convolution."""
        channels = self.heads * self.head_dim + 2 * self.groups * self.state
        return channels * (self.conv_width - 1)

    @property
    def state_elements(self) -> int:
        """Values kept per sequence: the state, and the last inputs of the convolution."""
        return self.heads * self.head_dim * self.state + self.conv_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveScan:
    """Mamba-1: `width` channels, each with its own decay over a state of `state`.

    The step size of a channel comes through a pair of rank `step_rank`. `norms` are on step, B and
    C (Jamba).
    """

    kind: Literal["scan"] = "scan"
    width: int
    state: int
    step_rank: int
    conv_width: int
    conv_bias: bool
    proj_bias: bool
    norms: bool = False

    @property
    def heads(self) -> int:
        """Parts that may lie on different chips: every channel has its own state."""
        return self.width

    @property
    def conv_elements(self) -> int:
        """Values kept per sequence: the last inputs of the convolution."""
        return self.width * (self.conv_width - 1)

    @property
    def state_elements(self) -> int:
        """Values kept per sequence: the state, and the last inputs of the convolution."""
        return self.width * self.state + self.conv_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Gated delta rule (Gated DeltaNet, Kimi Delta Attention): a matrix state per value head.

    `gate` says how the decay is made: "scalar" is one number per head from a D x N projection,
    "channel" one per key channel through a pair of rank `value_head_dim` (Kimi), "full" through one
    D x K H matrix (Bailing). The output gate is a pair of rank `output_rank`, or one full matrix
    where that is 0.
    """

    kind: Literal["delta"] = "delta"
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int
    gate: Literal["scalar", "channel", "full"] = "scalar"
    output_rank: int = 0

    @property
    def heads(self) -> int:
        """Heads that carry a state."""
        return self.value_heads

    @property
    def conv_elements(self) -> int:
        """Values kept per sequence: the last inputs of the convolution."""
        keys = self.key_heads * self.key_head_dim
        values = self.value_heads * self.value_head_dim
        return (2 * keys + values) * (self.conv_width - 1)

    @property
    def state_elements(self) -> int:
        """Values kept per sequence: the state, and the last inputs of the convolution."""
        return self.value_heads * self.value_head_dim * self.key_head_dim + self.conv_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning:
    """Lightning attention (MiniMax-01): linear attention with a gated, normed output."""

    kind: Literal["lightning"] = "lightning"
    heads: int
    head_dim: int

    @property
    def state_elements(self) -> int:
        """Values kept per sequence: one H x H matrix per head."""
        return self.heads * self.head_dim**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """LFM2 block: a gated depthwise convolution of `conv_width` over `width` channels."""

    kind: Literal["conv"] = "conv"
    width: int
    conv_width: int
    bias: bool

    @property
    def conv_elements(self) -> int:
        """Values kept per sequence: the last inputs of the convolution."""
        return self.width * (self.conv_width - 1)

    @property
    def state_elements(self) -> int:
        """Values kept per sequence: those of the convolution alone."""
        return self.conv_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A recurrence that is described by its tensors and states alone (mLSTM, RG-LRU, RWKV).

    `heads` have states of their own, with keys of `head_dim` and values of `v_head_dim`.
    """

    kind: Literal["recurrence"] = "recurrence"
    heads: int
    head_dim: int
    v_head_dim: int
    tensors: tuple[Extra, ...] = ()

    @property
    def width(self) -> int:
        """Elements of the output per token."""
        return self.heads * self.v_head_dim

    @property
    def state_elements(self) -> int:
        """Values kept per sequence."""
        return sum(tensor.kept for tensor in self.tensors)


SoftmaxMixer = Attention | LatentAttention | CompressedAttention
RecurrentMixer = Mamba | SelectiveScan | DeltaNet | Lightning | ShortConv | Recurrence
Mixer = SoftmaxMixer | RecurrentMixer


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Dense MLP: two matrices D x F and F x D, and a third D x F where it is gated.

    `inner_norm` norms what the second reads; an activation may have learned scalars (xIELU).
    """

    kind: Literal["dense"] = "dense"
    d_ff: int
    gated: bool = True
    bias: bool = False
    inner_norm: bool = False
    activation_scalars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Mixture of experts: each token goes to `experts_per_token` of `experts` MLPs of width d_ff.

    `shared_d_ff` is the total width of the `shared_experts` that see every token, `shared_gate` a
    D-wide gate on them. `latent_dim` is the width that routed experts work in where it is not
    d_model (0: d_model). `dense` is an MLP beside the experts. `router_scales` are learned scales
    of the router (Gemma 4: one per expert and one per channel); `selection_bias` is a number per
    expert that the class counts among its parameters although no gradient trains it. `hash_routed`
    layers look the expert up by token id and compute only its weight. With `product_keys` a routed
    expert is a row in and a row out, found by the best of 2 * sqrt(E) scores (PEER, arXiv
    2407.04153), and `gated` says something of the shared expert alone. `idle_experts` are choices
    beside the experts that compute nothing (LongCat-Flash); with `scores_shared` the router weighs
    the shared experts, too. `router_dim` is the width that the router reads, 0 where it is d_model.
    """

    kind: Literal["moe"] = "moe"
    experts: int
    experts_per_token: int
    d_ff: int
    gated: bool = True
    shared_experts: int = 0
    shared_d_ff: int = 0
    shared_gate: bool = False
    shared_bias: bool = False
    latent_dim: int = 0
    latent_norm: bool = False
    bias: bool = False
    selection_bias: bool = False
    router_scales: bool = False
    hash_routed: bool = False
    product_keys: bool = False
    idle_experts: int = 0
    scores_shared: bool = False
    router_dim: int = 0
    dense: Mlp | None = None

    @property
    def choices(self) -> int:
        """What a token's `experts_per_token` are chosen from."""
        return self.experts + self.idle_experts

    @property
    def computed_per_token(self) -> float:
        """Experts that compute for a token, on average over an even choice."""
        share = self.experts / self.choices if self.idle_experts else 1
        return self.experts_per_token * share

    @property
    def routes_all(self) -> bool:
        """Whether nothing but routed experts reads the block's input."""
        return not self.shared_d_ff and self.dense is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block of the stack. `mixer` or `mlp` is None where the block has none (hybrids).

    `norms` names the D-wide norms, `norm_bias` says whether they carry a bias. `parallel` layers
    feed attention and MLP the same input; `beside` is a recurrence that reads the input of `mixer`,
    and whose output is added to that one's (Falcon-H1). `per_layer_input` is the width of Gemma's
    per-layer embedding, `streams` the number of residual streams, `mixing` how they are mixed
    (hyper-connections, which "mean" leaves by a plain mean; AltUp, arXiv 2301.13310; "extras", by
    tensors that the class has of its own), `laurel_rank` that of a pair beside attention
    (LAuReL, arXiv 2411.07501), `attention_residual` marks Kimi's learned weighting of earlier
    blocks. Streams that are not `streams_mixed` are read and written, and never mixed (Hunyuan 4).
    `gated_norms` are those whose output a pair of rank `norm_gate_rank` gates (A.X K2),
    `residual_scales` a learned scale of the stream at each of the two sums (Doge). `extras` are
    tensors of its own. A `reused` layer has mixer, MLP and norms of an earlier one: it multiplies
    and caches anew and holds no parameters of these (HRM, Zamba).
    """

    mixer: Mixer | None
    mlp: Mlp | Moe | None
    norms: tuple[str, ...]
    beside: RecurrentMixer | None = None
    norm_bias: bool = False
    parallel: bool = False
    per_layer_input: int = 0
    streams: int = 1
    mixing: Mixing = "hyper"
    laurel_rank: int = 0
    attention_residual: bool = False
    cross_gates: bool = False
    gated_norms: tuple[str, ...] = ()
    norm_gate_rank: int = 0
    residual_scales: bool = False
    streams_mixed: bool = True
    extras: tuple[Extra, ...] = ()
    reused: bool = False

    @property
    def state_elements(self) -> int:
        """Values of recurrent state, and of inputs of convolutions, kept per sequence."""
        mixers = [part.mixer for part in self.by_mixer]
        own = sum(one.state_elements for one in mixers if isinstance(one, RecurrentMixer))
        return own + sum(extra.kept for extra in self.extras)

    @property
    def attention(self) -> SoftmaxMixer | None:
        """The mixer where it is softmax attention, else None."""
        return self.mixer if isinstance(self.mixer, SoftmaxMixer) else None

    @property
    def by_mixer(self) -> tuple["Layer", ...]:
        """The layer once for each of its mixers, with that one alone."""
        if self.beside is None:
            return (self,)
        return replace(self, beside=None), replace(self, mixer=self.beside, beside=None, extras=())
