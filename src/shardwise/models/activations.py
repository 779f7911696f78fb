"""Activations that the backward pass needs, and what recomputing them costs.

One table per kind of layer: `saved_activations`. Widths are elements per token. An autograd tape
keeps the inputs of every op whose gradient needs them, with flash attention (per head one
statistic, no T x S scores). Which of them a policy keeps is in its row (`remat.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.models.config import ModelConfig
from shardwise.models.flops import conv_shape, flops_by_op
from shardwise.models.parameter import Parameter
from shardwise.models.parameters import parameters
from shardwise.models.remat import PART_OF, RematKind, Saved, remat_row
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
    RecurrentMixer,
    SelectiveScan,
    ShortConv,
    SoftmaxMixer,
)
from shardwise.units import dtype_bytes
from shardwise.work import Quantity

ActivationKind = RematKind | Literal["dispatch"]
"""Kinds of activations, and "dispatch", the tokens sent to experts, which are copies of a norm's
output but follow `mlp_in` where a plan overrides that."""

GATE = ".gate"
"""How the names of matmuls end whose result a gated MLP's activation is applied to."""
SCAN_CHUNK: Mapping[str, int] = {"mamba": 256, "scan": 256, "delta": 64, "lightning": 256}
SCAN_CHUNK |= {"recurrence": 64}
"""Tokens between two saved states of a recurrence, by the kernels' defaults: mamba_ssm chunk_size,
flash-linear-attention chunk size, MiniMax-01 block; xLSTM's chunk_size for those of own tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One saved tensor of a layer: `width` elements per token, experts times k already.

    `letter` is the dim that the tensor axis cuts (F, N or K), "" where it is D wide or a latent.
    `kind` is what a plan calls it; `result` marks the one that the kind is named after, `tape` one
    that an autograd tape keeps. `f32` marks statistics and probabilities, which stay in f32
    whatever the activations are. `remade`: a compiler need not keep it, since it is elementwise of
    others that are kept, or nothing but the sum into the stream reads it. `fed`: nothing but
    matmuls reads it, so that it may be kept as they quantise it.
    """

    name: str
    width: float
    letter: str
    kind: ActivationKind
    result: bool = False
    tape: bool = True
    f32: bool = False
    remade: bool = False
    fed: bool = False

    @property
    def sharded(self) -> bool:
        """Whether the tensor axis cuts it even without sequence parallelism."""
        return bool(self.letter)

    def place(self, policy: str, kinds: Mapping[RematKind, Saved] | None = None) -> Saved:
        """Where a policy leaves it: "keep", "offload", or "recompute" where it is stored nowhere.

        `kinds` overrides the policy; a kind that is overridden is kept as a tape keeps it.
        """
        row, overrides = remat_row(policy), kinds or {}
        whole = "mlp_in" if self.kind == "dispatch" else PART_OF.get(self.kind)
        named = self.kind in overrides or whole in overrides
        stays = self.tape if row.tape or named else self.result
        return statuses(policy, overrides)[self.kind] if stays else "recompute"

    def bytes_per_token(self, element_bytes: float) -> float:
        """Bytes per token, `element_bytes` per element of what is not f32."""
        return self.width * (4.0 if self.f32 else element_bytes)


def statuses(policy: str, kinds: Mapping[RematKind, Saved]) -> Mapping[ActivationKind, Saved]:
    """What becomes of every kind of activation under a policy that `kinds` overrides. Tokens sent
    to experts are kept with the norms that they are copies of, unless `mlp_in` is overridden.

    >>> statuses("matmul_outputs", {"attention": "offload"})["attention"]
    'offload'
    """
    row = remat_row(policy).kinds
    gate = kinds.get("mlp_gate", kinds.get("mlp_in", row["mlp_in"]))
    return {**row, **kinds, "mlp_gate": gate, "dispatch": kinds.get("mlp_in", row["norm"])}


def saved_activations(cfg: ModelConfig, layer: Layer) -> tuple[Activation, ...]:
    """Everything that some policy keeps of one layer; `layer` is one of `cfg.groups`."""
    group = cfg.groups.index(layer)
    rows = [r for r in parameters(cfg) if r.group == group and r.role == "matmul"]
    return (
        *_stream(cfg, layer),
        *(_output(r, layer) for r in rows),
        *(kept for part in layer.by_mixer for kept in _mixer(part.mixer)),
        *_mlp(cfg, layer.mlp),
        *(
            _kept("norm", f"{x.name} input", x.size // dict(x.dims).get("W", 1))
            for x in layer.extras
            if x.role == "conv" or (x.role == "norm" and "D" in dict(x.dims))
        ),
    )


def activation_bytes(
    cfg: ModelConfig,
    policy: str,
    tokens: Quantity = 1,
    dtype: str = "bf16",
    place: Literal["device", "host"] = "device",
) -> Quantity:
    """Bytes kept for backward over all layers for `tokens` tokens, on the device or the host."""
    size, there = dtype_bytes(dtype), "offload" if place == "host" else "keep"
    remat_row(policy)
    per_token = 0.0
    for layer, layers in cfg.layer_groups():
        for a in saved_activations(cfg, layer):
            if a.place(policy) == there:
                per_token += layers * a.bytes_per_token(size)
    return per_token * tokens


def book_activation_bytes(
    tokens: Quantity, layers: int, d_model: int, saved: Quantity, dtype: str = "bf16"
) -> Quantity:
    """The book's count: `saved` intermediates per layer, each D wide (ch. 4.4.2)."""
    return saved * tokens * layers * d_model * dtype_bytes(dtype)


def recompute_flops_per_token(
    cfg: ModelConfig, policy: str, context: Quantity, causal: bool = True
) -> Quantity:
    """FLOPs per token that the backward pass runs a second time under a policy.

    Without attention's result, attention and scans run again (4 B T^2 N H per layer, Ex. 4.6); with
    nothing but the block's input the layers' whole forward pass does (6ND becomes 8ND). The head is
    never repeated.
    """
    kinds = statuses(policy, {})
    rows = {(r.group, r.name): r for r in parameters(cfg) if r.role == "matmul"}
    total: Quantity = 0.0 * context
    for op in flops_by_op(cfg, context, causal):
        row = rows.get((op.group, op.name))
        kind: RematKind = "attention" if row is None else _output_kind(row)
        if op.group is not None and kinds[kind] == "recompute":
            total = total + op.forward
    return total


def _kept(
    kind: ActivationKind,
    name: str,
    width: float,
    letter: str = "",
    f32: bool = False,
    remade: bool = False,
    fed: bool = False,
) -> Activation:
    return Activation(
        name=name, width=width, letter=letter, kind=kind, f32=f32, remade=remade, fed=fed
    )


def _stream(cfg: ModelConfig, layer: Layer) -> list[Activation]:
    """The residual stream, and the norms on it: a norm needs its input, a matmul its own."""
    D = cfg.d_model
    stream = layer.streams * D
    saved = [
        Activation(name="block input", width=stream, letter="", kind="block_input", result=True)
    ]
    if layer.mixer is not None and layer.mlp is not None and not layer.parallel:
        saved.append(_kept("attention_out", "stream after mixer", stream))
    for norm in layer.norms:
        side = "input" if norm.startswith("post_") else "output"
        routed = norm == "mlp" and isinstance(layer.mlp, Moe)  # the router is never quantised
        saved.append(_kept("norm", f"{norm} norm {side}", D, fed=side == "output" and not routed))
    saved.append(_kept("norm", "norm statistics", len(layer.norms), f32=True))
    return saved


def _output(row: Parameter, layer: Layer) -> Activation:
    """What a matmul row yields. The tape keeps it for the op that reads it; a plain sum into the
    stream needs nothing, but the weighted sum over experts does. The last sum into the stream is
    read by the next layer alone, unless a norm stands between."""
    letters = _letters(row)
    summed = "D" in letters and "E" not in row.batch
    kind = _output_kind(row)
    last = kind == "mlp_out" or layer.parallel or layer.mlp is None
    normed = f"post_{'mlp' if kind == 'mlp_out' else 'attention'}" in layer.norms
    return Activation(
        name=f"{row.name} output",
        width=float(row.outputs * row.batches * row.active),
        letter=next((d for d in letters if d in "FNKV"), ""),
        kind=kind,
        result=True,
        tape=not summed,
        remade=summed and last and not normed,
    )


def _letters(row: Parameter) -> list[str]:
    """Dims of a matmul's result."""
    return [d for d, _ in row.dims if d not in row.contracts + row.batch]


def _output_kind(row: Parameter) -> RematKind:
    """What a matmul's result is called; rows that are not the mixer's belong to the MLP."""
    into_stream = "D" in _letters(row)
    if row.component in ("attention", "linear_attention"):
        return "attention_out" if into_stream else "qkv"
    if into_stream:
        return "mlp_out"
    return "mlp_gate" if row.name.endswith(GATE) else "mlp_in"


def _mixer(mixer: Mixer | None) -> list[Activation]:
    """What lies between a mixer's matmuls."""
    match mixer:
        case Attention():
            saved = [*_normed_heads(mixer), *_core(mixer, mixer.gated)]
            return saved if not mixer.out_norm else [*saved, _normed_output(mixer)]
        case LatentAttention():
            saved = [_kept("qkv", "normed kv latent", mixer.kv_lora_rank, fed=True)]
            if mixer.q_lora_rank is not None:
                saved.append(_kept("qkv", "normed query latent", mixer.q_lora_rank, fed=True))
            if mixer.rope_head_dim:
                rotary = mixer.heads * mixer.rope_head_dim
                saved.append(_kept("qkv", "rotary keys of all heads", rotary, "N"))
            return [*saved, *_core(mixer, mixer.gated)]
        case CompressedAttention():
            return [
                _kept("qkv", "normed query latent", mixer.q_lora_rank),
                *_core(mixer, gated=False),
            ]
        case None:
            return []
        case _:
            return _recurrent(mixer)


def _normed_heads(mixer: Attention) -> list[Activation]:
    if mixer.qk_norm == "none":
        return []
    keys = (
        []
        if mixer.reuses_kv
        else [_kept("qkv", "normed keys", mixer.kv_heads * mixer.head_dim, "K", remade=True)]
    )
    queries = _kept("qkv", "normed queries", mixer.heads * mixer.head_dim, "N", remade=True)
    return [queries, *keys]


def _normed_output(mixer: Attention) -> Activation:
    return _kept("attention", "normed attention output", mixer.heads * mixer.v_head_dim, "N")


def _core(mixer: SoftmaxMixer, gated: bool) -> list[Activation]:
    """The output of flash attention, its log-sum-exp, and the gated output."""
    halves = 2 if isinstance(mixer, Attention) and mixer.differential else 1
    width = halves * mixer.heads * mixer.v_head_dim
    saved = [
        _kept("attention", "attention output", width, "N"),
        _kept("attention", "attention statistics", mixer.heads, "N", f32=True),
    ]
    return [*saved, _kept("attention", "gated attention output", width, "N")] if gated else saved


def recurrent_state(mixer: RecurrentMixer) -> int:
    """Elements of a recurrence's state, without the inputs that its convolution keeps."""
    match mixer:
        case Mamba():
            return mixer.heads * mixer.head_dim * mixer.state
        case SelectiveScan():
            return mixer.width * mixer.state
        case DeltaNet():
            return mixer.value_heads * mixer.value_head_dim * mixer.key_head_dim
        case Lightning():
            return mixer.heads * mixer.head_dim**2
        case ShortConv():
            return 0
        case Recurrence():
            return sum(x.size for x in mixer.tensors if x.role == "state")


def _recurrent(mixer: RecurrentMixer) -> list[Activation]:
    """Convolved inputs, a state every SCAN_CHUNK tokens, the read-out before and after its gate."""
    match mixer:
        case Mamba():
            width = mixer.heads * mixer.head_dim
            inputs = width + 2 * mixer.groups * mixer.state
        case SelectiveScan():
            width = mixer.width
            inputs = width + mixer.step_rank + 2 * mixer.state
        case DeltaNet():
            keys = mixer.key_heads * mixer.key_head_dim
            width = mixer.value_heads * mixer.value_head_dim
            inputs = 2 * keys + width
        case Lightning():
            width = mixer.heads * mixer.head_dim
            inputs = 3 * width
        case Recurrence():
            width = mixer.width
            inputs = conv_shape(mixer)[0] or width
        case ShortConv():
            return [
                _kept("qkv", "gated conv input", mixer.width, "F"),
                _kept("attention", "conv output", mixer.width, "F"),
                _kept("attention", "gated conv output", mixer.width, "F"),
            ]
    return [
        _kept("qkv", "scan inputs", inputs, "N"),
        _kept(
            "attention",
            "scan states",
            recurrent_state(mixer) / SCAN_CHUNK[mixer.kind],
            "N",
            f32=True,
        ),
        _kept("attention", "scan output", width, "N"),
        _kept("attention", "gated scan output", width, "N"),
    ]


def _mlp(cfg: ModelConfig, mlp: Mlp | Moe | None) -> list[Activation]:
    """What lies between an MLP's matmuls."""
    if mlp is None:
        return []
    if isinstance(mlp, Mlp):
        saved = _activated("mlp", mlp.d_ff, mlp.gated)
        norm = [_kept("activation", "mlp normed", mlp.d_ff, "F", fed=True)]
        return [*saved, *norm * mlp.inner_norm]
    k, width = mlp.computed_per_token, mlp.latent_dim or cfg.d_model
    saved = [
        _kept("mlp_in", "router probabilities", mlp.experts, f32=True),
        _kept("dispatch", "dispatched tokens", k * width, fed=True),
        *_activated("experts", k * mlp.d_ff, mlp.gated and not mlp.product_keys),
    ]
    if mlp.latent_dim:
        saved.append(_kept("mlp_out", "combined experts", mlp.latent_dim))
    if mlp.latent_norm:
        saved.append(_kept("mlp_out", "normed latent", mlp.latent_dim))
    if mlp.shared_d_ff:
        saved += _activated("shared experts", mlp.shared_d_ff, mlp.gated)
    return saved if mlp.dense is None else [*saved, *_mlp(cfg, mlp.dense)]


def _activated(name: str, width: float, gated: bool) -> list[Activation]:
    """The activation function's result, and its product with the other half where gated."""
    if not gated:
        return [_kept("activation", f"{name} activated", width, "F", fed=True)]
    return [
        _kept("activation", f"{name} activated", width, "F", remade=True),
        _kept("activation", f"{name} product", width, "F", fed=True),
    ]


def saved_scores(layer: Layer, context: float, *, wide: bool = False) -> tuple[Activation, ...]:
    """What attention keeps on top where it writes its T x S scores to memory: the probabilities, in
    16 bits, S per head and token (arXiv 2205.05198, section 4.1, without dropout). A `wide` softmax
    keeps its result in f32, too."""
    mixer = layer.attention
    if mixer is None:
        return ()
    width = mixer.heads * context
    narrow = _kept("attention", "attention probabilities", width, "N")
    if not wide:
        return (narrow,)
    return (narrow, replace(narrow, name="attention probabilities, f32", f32=True))
