"""Count the ops of one layer on one device: the forward pass, and the backward pass from it.

Everything comes from the parameter table and the layer's specs, so a new kind of layer needs rows
there and nothing here. Quantities broadcast over candidate plans. A block (mixer or MLP) is: norm,
gather over tensor, matmuls in, core, matmuls out, scatter over tensor (ch. 5.1.3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.flops import attention_flops_per_token, scan_flops_per_token
from shardwise.models.specs import Layer, Moe, SoftmaxMixer
from shardwise.planner.ops import exchange, make_op
from shardwise.plans.layouts import compute_share, is_expert, tensor_letter
from shardwise.units import dtype_bytes
from shardwise.work import Matmul, Op, Quantity

MIXER_COMPONENTS = frozenset({"attention", "linear_attention"})
"""Components of the mixer's rows; all other rows of a layer belong to its MLP block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one device sees of one layer: `tokens` of its microbatch, `context` tokens attended.

    `tokens` are this device's after batch and context sharding, before tensor.
    """

    tokens: Quantity
    context: Quantity
    degrees: Mapping[str, Quantity]
    compute: str
    weights: str
    activations: str
    sequence_parallel: bool = True
    causal: bool = True

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @property
    def norm_tokens(self) -> Quantity:
        """Tokens per device between blocks: also cut by tensor under sequence parallelism."""
        return self.tokens / self.degree("tensor") if self.sequence_parallel else self.tokens


def layer_rows(rows: Sequence[Parameter], group: int) -> tuple[Parameter, ...]:
    """The matmul rows of one layer group, in table order."""
    return tuple(r for r in rows if r.group == group and r.role == "matmul")


def forward_layer(
    cfg: ModelConfig,
    layer: Layer,
    rows: Sequence[Parameter],
    shape: LayerShape,
    *,
    matmul: Callable[[Parameter, LayerShape], Op] | None = None,
    core: Callable[[Layer, LayerShape], Sequence[Op]] | None = None,
) -> tuple[Op, ...]:
    """Ops of one layer's forward pass, chained by `after`; phase and body are set by the caller.

    `matmul` counts one row and `core` the mixer between its projections; serving has its own, which
    read stored weights and a cache.
    """
    matmul, core = matmul or matmul_op, core or mixer_core
    mixer = tuple(r for r in rows if r.component in MIXER_COMPONENTS or layer.mlp is None)
    mlp = tuple(r for r in rows if r not in mixer)
    norms = max(len(layer.norms), 1) / ((layer.mixer is not None) + (layer.mlp is not None))
    ops: list[Op] = []
    if layer.mixer is not None:
        inner = [*_head_norm(layer, shape), *core(layer, shape)]
        ops += _block("attention", cfg, norms, mixer, inner, shape, (), matmul)
    if layer.mlp is not None:
        wire = _expert_exchange(cfg, layer.mlp, shape) if isinstance(layer.mlp, Moe) else ()
        ops += _block("mlp", cfg, norms, mlp, _activation(mlp, shape), shape, wire, matmul)
    return chain(ops)


def _block(
    name: str,
    cfg: ModelConfig,
    norms: float,
    rows: Sequence[Parameter],
    core: Sequence[Op],
    shape: LayerShape,
    exchange: Sequence[Op],
    matmul: Callable[[Parameter, LayerShape], Op],
) -> list[Op]:
    into = [r for r in rows if not _yields_d(r)]
    out = [r for r in rows if _yields_d(r)]
    return [
        _norm(name, cfg, norms, shape),
        *tensor_step(f"{name}.gather", "all_gather", name, cfg, shape),
        *exchange[:1],
        *(matmul(r, shape) for r in into),
        *core,
        *(matmul(r, shape) for r in out),
        *exchange[1:],
        *tensor_step(f"{name}.scatter", "reduce_scatter", name, cfg, shape),
    ]


def _yields_d(row: Parameter) -> bool:
    return any(d == "D" and d not in row.contracts for d, _ in row.dims)


def matmul_op(row: Parameter, shape: LayerShape) -> Op:
    """One matmul row: [m, k] x [k, n] per device, experts as a batch of such products.

    Of E experts a batch of B tokens hits E (1 - (1 - k/E)^B) with random routing: only those are
    read, each with its share of the tokens.
    """
    m, batch = shape.tokens, float(row.batches)
    if is_expert(row):
        experts = shape.degree("expert")
        share = float(row.active)
        hit = 1.0 - (1.0 - share) ** (shape.tokens * experts)
        batch = row.batches / experts * hit
        m = shape.tokens * share * experts / hit
    k, n = _local_dims(row, shape.degree("tensor"))
    weight = k * n * batch * dtype_bytes(shape.weights)
    moved = (m * k + m * n) * batch * dtype_bytes(shape.activations)
    return Op(
        id=row.name,
        name=row.name,
        phase="forward",
        component=row.component,
        op_class="matmul",
        flops={shape.compute: 2.0 * m * k * n * batch},
        hbm_bytes=weight + moved,
        matmul=Matmul(m=m, k=k, n=n, batch=batch),
    )


def _local_dims(row: Parameter, tensor: Quantity) -> tuple[Quantity, Quantity]:
    """k and n of a matmul row on one device; tensor cuts the side that holds its letter."""
    k, n = float(row.contracted), float(row.outputs)
    letter = tensor_letter(row)
    if not letter:
        return k, n
    size = next(s for d, s in row.dims if d == letter)
    local = np.ceil(size / tensor)
    # Multiplied last: a rounding error above a whole number would cost a tile of padding.
    return (k / size * local, n) if letter in row.contracts else (k, n / size * local)


def _head_norm(layer: Layer, shape: LayerShape) -> list[Op]:
    """Norms of queries and keys: one read and one write of both."""
    mixer = layer.attention
    if mixer is None or getattr(mixer, "qk_norm", "none") == "none":
        return []
    width = (mixer.heads + kv_heads(mixer)) * mixer.head_dim / shape.degree("tensor")
    traffic = 2 * width * shape.tokens * dtype_bytes(shape.activations)
    return [make_op("attention.qk_norm", "norm", "elementwise", hbm_bytes=traffic)]


def mixer_core(layer: Layer, shape: LayerShape) -> list[Op]:
    """The mixer between its projections: flash attention or a scan over the whole sequence."""
    if isinstance(layer.mixer, SoftmaxMixer):
        return _attention_core(layer, layer.mixer, shape)
    flops = scan_flops_per_token(layer) * shape.tokens / shape.degree("tensor")
    mixer = layer.mixer
    width = getattr(mixer, "width", 0) or getattr(mixer, "heads", 0) * _width(mixer)
    traffic = 4 * width * shape.tokens / shape.degree("tensor") * dtype_bytes(shape.activations)
    return [make_op("scan", "attention", "scan", flops={shape.compute: flops}, hbm_bytes=traffic)]


def _width(mixer: object) -> int:
    return getattr(mixer, "value_head_dim", 0) or getattr(mixer, "head_dim", 0)


def _attention_core(layer: Layer, mixer: SoftmaxMixer, shape: LayerShape) -> list[Op]:
    """Flash attention: scores never leave the chip; Q, K, V are read and the output is written."""
    tensor, context = shape.degree("tensor"), shape.degree("context")
    size = dtype_bytes(shape.activations)
    heads = mixer.heads / tensor * (mixer.head_dim + mixer.v_head_dim)
    kv = np.ceil(kv_heads(mixer) / tensor) * (mixer.head_dim + mixer.v_head_dim)
    flops = attention_flops_per_token(layer, shape.context, causal=shape.causal)
    ops = []
    if np.any(np.asarray(context) > 1):
        gathered = shape.tokens * context * kv * size
        ops.append(exchange("attention.kv", "all_gather", "attention", ("context",), gathered))
    ops.append(
        make_op(
            "attention.core",
            "attention",
            "attention",
            flops={shape.compute: flops * shape.tokens / tensor},
            hbm_bytes=shape.tokens * (heads + kv * context) * size,
        )
    )
    return ops


def kv_heads(mixer: SoftmaxMixer) -> int:
    """KV heads as computed with: latent attention expands its latent to every query head."""
    return getattr(mixer, "kv_heads", mixer.heads)


def _activation(rows: Sequence[Parameter], shape: LayerShape) -> list[Op]:
    """The elementwise activation: reads what the matmuls in wrote, writes half of it if gated."""
    width = sum(
        float(r.active * r.batches * r.outputs)
        * compute_share(r, {"tensor": shape.degree("tensor")})
        for r in rows
        if not _yields_d(r) and r.component not in ("router", "other")
    )
    traffic = 1.5 * width * shape.tokens * dtype_bytes(shape.activations)
    return [make_op("mlp.activation", "mlp", "elementwise", hbm_bytes=traffic)]


def _norm(name: str, cfg: ModelConfig, norms: float, shape: LayerShape) -> Op:
    """Residual add and first norm, fused: read the stream and the block's output, write the sum and
    the norm (4 passes); every further norm of the block reads and writes once."""
    passes = 4 + 2 * (norms - 1)
    traffic = passes * shape.norm_tokens * cfg.d_model * dtype_bytes(shape.activations)
    return make_op(f"{name}.norm", "norm", "elementwise", hbm_bytes=traffic)


def tensor_step(
    op_id: str, kind: str, component: str, cfg: ModelConfig, shape: LayerShape
) -> list[Op]:
    """The gather or scatter of activations over tensor; an all-reduce after the block without
    sequence parallelism."""
    if not np.any(np.asarray(shape.degree("tensor")) > 1):
        return []
    if not shape.sequence_parallel:
        if kind == "all_gather":
            return []
        kind = "all_reduce"
    size = shape.tokens * cfg.d_model * dtype_bytes(shape.activations)
    return [exchange(op_id, kind, component, ("tensor",), size)]


def _expert_exchange(cfg: ModelConfig, moe: Moe, shape: LayerShape) -> tuple[Op, ...]:
    """Dispatch and combine: every token goes to k experts, every device sends its share (12.6)."""
    expert = shape.degree("expert")
    if not np.any(np.asarray(expert) > 1):
        return ()
    width = moe.latent_dim or cfg.d_model
    share = shape.norm_tokens * width * dtype_bytes(shape.activations)
    total = share * expert * moe.experts_per_token
    return tuple(
        exchange(f"experts.{step}", "all_to_all", "experts", ("expert",), total)
        for step in ("dispatch", "combine")
    )


def chain(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Each op after the one before it, the first after none: what a block's data flow demands."""
    chained = [replace(op, after=()) for op in ops[:1]]
    for op in ops[1:]:
        chained.append(replace(op, after=(chained[-1].id,)))
    return tuple(chained)


def backward_layer(forward: Sequence[Op]) -> tuple[Op, ...]:
    """The backward pass of a chained forward pass, in reverse order.

    A matmul becomes two of the same FLOPs and bytes: dX = dY W^T (phase "backward") and
    dW = X^T dY (phase "weight", nothing of the layer waits for it). Attention makes five products
    for two (scores are made again from the saved statistics: FlashAttention-2, section 3.1),
    elementwise ops move twice the bytes, and each collective becomes its transpose (ch. 3.3.2).
    """
    return chain([op for forth in reversed(forward) for op in _transposed(forth)])


_BACKWARD_FACTOR = {"attention": 2.5, "scan": 2.0, "elementwise": 2.0}
"""FLOPs and bytes of the backward pass over those of the forward pass; 1 for all others."""


def _transposed(op: Op) -> list[Op]:
    """The ops that the backward pass runs for one of the forward pass."""
    factor = _BACKWARD_FACTOR.get(op.op_class, 1.0)
    collective = op.collective
    if collective is not None:
        swap = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
        kind = swap.get(collective.kind, collective.kind)
        collective = replace(collective, kind=kind)  # type: ignore[arg-type]
    back = replace(
        op,
        id=f"d.{op.id}",
        name=f"d {op.name}",
        phase="backward",
        flops={dtype: f * factor for dtype, f in op.flops.items()},
        hbm_bytes=op.hbm_bytes * factor,
        collective=collective,
    )
    if op.matmul is None:
        return [back]
    m = op.matmul
    # [m, n] x [n, k] and [k, m] x [m, n].
    inputs = replace(back, matmul=replace(m, k=m.n, n=m.k))
    weights = replace(back, id=f"w.{op.id}", name=f"dW {op.name}", phase="weight")
    return [inputs, replace(weights, matmul=replace(m, m=m.k, k=m.m))]
