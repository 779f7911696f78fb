"""FLOPs per token: matmul rows from the parameter table, attention and scans from the layer specs.

Forward unless a name says otherwise. The backward pass costs twice the forward one (dX and dW of a
matmul, ch. 4.1.1), training three times. `context` is the tokens of a sequence and may be an array.
`causal` counts only the keys a causal mask leaves (half of them without a window); the book ignores
the mask. Work on image tokens (cross-attention keys, towers) is not counted: towers are not priced.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.models.components import CORE, SCAN
from shardwise.models.config import ModelConfig
from shardwise.models.parameters import parameters
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    DeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Lightning,
    Mamba,
    Mixer,
    Recurrence,
    SelectiveScan,
    ShortConv,
    SoftmaxMixer,
)
from shardwise.work import Quantity

TRAINING = 3
"""Training FLOPs over forward FLOPs: forward once, backward twice."""

Against = Literal["layers", "projections"]
"""What attention is compared with: all matmuls of the layers, or the mixers' projections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFlops:
    """One op: `forward` FLOPs per token, summed over the `layers` that run it.

    `group` is the index of the layer in `ModelConfig.groups`, None outside the stack.
    """

    name: str
    component: str
    op_class: Literal["matmul", "attention", "scan"]
    group: int | None
    layers: int
    forward: Quantity

    @property
    def backward(self) -> Quantity:
        """Twice the forward pass."""
        return (TRAINING - 1) * self.forward

    @property
    def training(self) -> Quantity:
        """Forward and backward."""
        return TRAINING * self.forward


def flops_by_op(cfg: ModelConfig, context: Quantity, causal: bool = True) -> tuple[OpFlops, ...]:
    """Every op that multiplies, per token at `context`: matmul rows, attention, scans."""
    ops = [
        OpFlops(
            name=row.name,
            component=row.component,
            op_class="matmul",
            group=row.group,
            layers=row.layers,
            forward=float(row.flops_per_token),
        )
        for row in parameters(cfg)
        if row.role == "matmul"
    ]
    for group, (layer, layers) in enumerate(cfg.layer_groups()):
        for part in layer.by_mixer:
            if part.attention is not None:
                core = layers * attention_flops_per_token(part, context, causal)
                ops.append(_mixer_op(CORE, "attention", group, layers, core))
            scanned = scan_flops_per_token(part)
            if (part.attention is None and part.mixer is not None) or scanned:
                ops.append(_mixer_op(SCAN, "scan", group, layers, layers * scanned))
    return tuple(ops)


def flops_by_component(
    cfg: ModelConfig, context: Quantity, causal: bool = True
) -> dict[str, Quantity]:
    """Forward FLOPs per token by component of the parameter table, then CORE and SCAN."""
    totals: dict[str, Quantity] = {}
    for op in flops_by_op(cfg, context, causal):
        totals[op.component] = totals.get(op.component, 0.0) + op.forward
    return totals


def forward_flops_per_token(cfg: ModelConfig, context: Quantity, causal: bool = True) -> Quantity:
    """Forward FLOPs of one token at `context`."""
    total: Quantity = 0.0
    for op in flops_by_op(cfg, context, causal):
        total = total + op.forward
    return total


def model_flops_per_token(
    cfg: ModelConfig,
    context: Quantity,
    causal: bool = True,
    trained: Callable[[str], bool] = lambda component: True,
) -> Quantity:
    """Training FLOPs per token, the numerator of `mfu`.

    6 * active parameters without the embedding lookup, plus three times attention and recurrence.
    A tied head counts: its matrix multiplies although it is stored with the embedding. Of
    components that are not `trained` 4 instead of 6: no product makes their gradient.
    """
    used = sum(
        row.size * row.active * row.layers * (TRAINING if trained(row.component) else TRAINING - 1)
        for row in parameters(cfg)
        if row.role not in ("lookup", "tower", "cross")
    )
    scans = sum(
        layers * _states(part) for layer, layers in cfg.layer_groups() for part in layer.by_mixer
    )
    return 2 * float(used) + TRAINING * (_attention(cfg, context, causal) + scans)


def six_nd(params: Quantity, tokens: Quantity = 1.0) -> Quantity:
    """6 * N * D, the rule of thumb for training FLOPs (ch. 4.3); N active parameters, D tokens."""
    return 2 * TRAINING * params * tokens


def keys_seen(layer: Layer, context: Quantity, causal: bool = True) -> Quantity:
    """Keys that a query attends to, on average over the queries of a sequence of `context` tokens.

    Causal, query i sees i of `context` keys, so half of them on average, and w - w^2 / (2 context)
    within a window (or a choice) of w. Not causal: all of them, up to the window. Compressed
    entries count one each. 0 for cross attention, whose keys are not text, and without attention.
    """
    match layer.mixer:
        case Attention(kind="cross"):
            return 0.0 * context
        case Attention(kind="chunk", window=int() as chunk):
            return _chunked(context, chunk, causal)
        case CompressedAttention() as mixer:
            return _seen(context, mixer.window, causal) + _entries(mixer, context, causal)
        case Attention() | LatentAttention() as mixer:
            return _seen(context, most_keys(mixer), causal)
        case _:
            return 0.0 * context


def most_keys(mixer: Attention | LatentAttention) -> float:
    """The most keys that a query attends to: its window, or as many as are chosen for it."""
    if isinstance(mixer, LatentAttention):
        chosen = mixer.sparse_top_k
    else:
        chosen = mixer.chosen_keys or (mixer.indexer and mixer.indexer.top_k)
    return min(mixer.window or math.inf, chosen or math.inf)


def attention_flops_per_token(
    layer: Layer, context: Quantity, causal: bool = True, absorbed: bool = False
) -> Quantity:
    """Forward FLOPs per query of QK^T and PV: 2 * N * (H_qk + H_v) * keys; 0 without attention.

    An indexer adds 2 * J * I per entry that it scores; differential attention does it all twice,
    for either half of the values. `absorbed` is the decode form of latent attention (DeepSeek-V2,
    2.1.2): queries meet the cached latent, of kv_lora + rope, instead of expanded heads; its
    projections cost what the table's rows say.
    """
    mixer = layer.attention
    if mixer is None:
        return 0.0 * context
    width = mixer.head_dim + mixer.v_head_dim
    if absorbed and isinstance(mixer, LatentAttention):
        width = 2 * mixer.kv_lora_rank + mixer.rope_head_dim
    scores = 2.0 * mixer.heads * width * keys_seen(layer, context, causal)
    if isinstance(mixer, Attention) and mixer.differential:
        scores = scores * 2
    indexer = mixer.indexer
    return scores if indexer is None else scores + _indexer_flops(indexer, context, causal)


def scan_flops_per_token(layer: Layer) -> float:
    """Forward FLOPs per token of recurrences and convolutions: states and depthwise filters."""
    own = sum(extra.scan_flops for extra in layer.extras)
    if isinstance(layer.mixer, Recurrence):
        return own + sum(tensor.scan_flops for tensor in layer.mixer.tensors)
    channels, width = conv_shape(layer.mixer)
    return own + _state_flops(layer.mixer) + 2.0 * channels * width


def chunked_scan_flops_per_token(layer: Layer) -> float:
    """The same as kernels compute it that take chunks of Q tokens at once: of Mamba-2 the scores
    within a chunk for every group, their product with the inputs for every head, and the states
    into and out of the chunk, 2 Q N G + Q P H + 4 N P H (Dao and Gu 2024, section 6)."""
    mixer = layer.mixer
    if not isinstance(mixer, Mamba):
        return scan_flops_per_token(layer)
    states = 4.0 * mixer.state * mixer.head_dim * mixer.heads
    within = 2.0 * mixer.state * mixer.groups + mixer.head_dim * mixer.heads
    channels, width = conv_shape(mixer)
    return SCANNED * within + states + 2.0 * channels * width


SCANNED = 128
"""Tokens of a chunk in the kernels of Mamba-2 (NVIDIA's recipes of Nemotron)."""


def attention_intensity(
    mixer: SoftmaxMixer, queries: Quantity, keys: Quantity, element_bytes: float = 2.0
) -> Quantity:
    """FLOPs per HBM byte of flash attention over `queries` x `keys`, without a mask (Ex. 4.4).

    Q, K and V are read once and the output is written: T S G / (T G + S) in bf16.
    """
    width = mixer.head_dim + mixer.v_head_dim
    kv_heads = mixer.heads if isinstance(mixer, LatentAttention) else mixer.kv_heads
    moved = (mixer.heads * queries + kv_heads * keys) * width * element_bytes
    return 2.0 * mixer.heads * width * queries * keys / moved


def attention_over_matmul(
    cfg: ModelConfig, context: Quantity, causal: bool = False, against: Against = "layers"
) -> Quantity:
    """Attention FLOPs over matmul FLOPs of the layers, or of the mixers' projections only.

    T / (8 D) for a gated MLP with F = 4D, N H = D and K = N, without the mask (ch. 4.3).
    """
    return _attention(cfg, context, causal) / _matmuls(cfg, against)


def attention_crossover(
    cfg: ModelConfig, causal: bool = False, against: Against = "layers", longest: int = 2**40
) -> float:
    """Shortest context at which attention costs as much as the matmuls of the layers.

    8 D tokens under the book's assumptions, 2 D against the projections (Ex. 4.5). Infinite where
    windows keep attention cheaper up to `longest` tokens.
    """
    matmuls = _matmuls(cfg, against)
    if _attention(cfg, longest, causal) < matmuls:
        return math.inf
    low, high = 0, longest
    while high - low > 1:
        middle = (low + high) // 2
        if _attention(cfg, middle, causal) < matmuls:
            low = middle
        else:
            high = middle
    return high


def _attention(cfg: ModelConfig, context: Quantity, causal: bool) -> Quantity:
    total: Quantity = 0.0
    for layer, layers in cfg.layer_groups():
        total = total + layers * attention_flops_per_token(layer, context, causal)
    return total


def _matmuls(cfg: ModelConfig, against: Against) -> float:
    """Matmul FLOPs per token over all layers, or of their mixers alone."""
    rows = [r for r in parameters(cfg) if r.group is not None]
    if against == "projections":
        rows = [r for r in rows if r.component == "attention"]
    return float(sum(r.flops_per_token for r in rows))


def _mixer_op(
    name: str, kind: Literal["attention", "scan"], group: int, layers: int, forward: Quantity
) -> OpFlops:
    return OpFlops(
        name=name, component=name, op_class=kind, group=group, layers=layers, forward=forward
    )


def _seen(span: Quantity, limit: float, causal: bool) -> Quantity:
    reach = np.minimum(span, limit)
    return reach - reach * reach / (2 * np.maximum(span, 1)) if causal else 1.0 * reach


def _chunked(context: Quantity, chunk: int, causal: bool) -> Quantity:
    """Aligned chunks: a causal query sees the part of its own chunk that stands before it."""
    if not causal:
        return 1.0 * np.minimum(context, chunk)
    rest = np.mod(context, chunk)
    return ((context - rest) * chunk + rest * rest) / (2 * np.maximum(context, 1))


def _entries(mixer: CompressedAttention, context: Quantity, causal: bool) -> Quantity:
    if not mixer.ratio:
        return 0.0 * context
    limit = math.inf if mixer.indexer is None else mixer.indexer.top_k
    return _seen(context / mixer.ratio, limit, causal)


def _indexer_flops(indexer: Indexer, context: Quantity, causal: bool) -> Quantity:
    entries = _seen(context / indexer.ratio, math.inf, causal)
    return 2.0 * indexer.heads * indexer.head_dim * entries


def _states(layer: Layer) -> float:
    """FLOPs per token on all states of a layer, without convolutions (their rows say those)."""
    own = sum(extra.scan_flops for extra in layer.extras if extra.role == "state")
    return own + _state_flops(layer.mixer)


def _state_flops(mixer: Mixer | None) -> float:
    """FLOPs per token on the recurrent state, in its recurrent form.

    Decay (1), rank-one update (2) and read-out (2) per element of the state; the delta rule also
    reads the state at the key before it writes (2).
    """
    match mixer:
        case Mamba():
            return 5.0 * mixer.heads * mixer.head_dim * mixer.state
        case SelectiveScan():
            return 5.0 * mixer.width * mixer.state
        case Lightning():
            return 5.0 * mixer.heads * mixer.head_dim**2
        case DeltaNet():
            return 7.0 * mixer.value_heads * mixer.value_head_dim * mixer.key_head_dim
        case Recurrence():
            return sum(x.scan_flops for x in mixer.tensors if x.role == "state")
        case _:
            return 0.0


def conv_shape(mixer: Mixer | None) -> tuple[int, int]:
    """Channels and width of a mixer's depthwise convolution."""
    match mixer:
        case Mamba():
            channels = mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.state
            return channels, mixer.conv_width
        case DeltaNet():
            keys = mixer.key_heads * mixer.key_head_dim
            return 2 * keys + mixer.value_heads * mixer.value_head_dim, mixer.conv_width
        case ShortConv() | SelectiveScan():
            return mixer.width, mixer.conv_width
        case Recurrence():
            filters = [x for x in mixer.tensors if x.role == "conv"]
            width = max((dict(x.dims)["W"] for x in filters), default=1)
            return sum(x.size for x in filters) // width, width
        case _:
            return 0, 0
