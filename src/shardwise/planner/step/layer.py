"""Count the ops of one layer on one device: the forward pass, and the backward pass from it.

Everything comes from the parameter table and the layer's specs, so a new kind of layer needs rows
there and nothing here. Quantities broadcast over candidate plans. A block (mixer or MLP) is: norm,
gather over tensor, matmuls in, core, matmuls out, scatter over tensor (ch. 5.1.3). What a strategy
adds to it is in `strategies/`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.activations import GATE, ActivationKind
from shardwise.models.components import CORE
from shardwise.models.flops import attention_flops_per_token
from shardwise.models.specs import Attention, LatentAttention, Layer, Moe, SoftmaxMixer
from shardwise.planner.step.recurrence import own_convolutions, recurrence
from shardwise.planner.step.shape import LayerShape, Yield, kv_heads
from shardwise.planner.step.strategies.context import around_the_kernel, context_exchanges, in_tiles
from shardwise.planner.step.strategies.expert import block_share, expert_batch, expert_steps
from shardwise.planner.step.strategies.packing import packed_flops
from shardwise.planner.step.strategies.stationary import contracts_width, local_matmul, parts, sums
from shardwise.planner.step.strategies.tensor import tensor_step
from shardwise.plans.layouts import is_expert, tensor_letter
from shardwise.units import dtype_bytes
from shardwise.work import Matmul, Op, Quantity, changed, make_op

SCORE_BYTES = 2.0
"""Scores and probabilities are kept in 16 bits (Megatron-LM)."""

SCORE_PASSES = 4
"""QK^T writes the scores, scale, mask and softmax as one read and write them, PV reads them."""

MIXER_COMPONENTS = frozenset({"attention", "linear_attention"})
"""Components of the mixer's rows; all other rows of a layer belong to its MLP block."""


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
    yields = layer_ops(cfg, layer, rows, shape, matmul=matmul, core=core)
    return chain([op for _, op in yields])


def layer_ops(
    cfg: ModelConfig,
    layer: Layer,
    rows: Sequence[Parameter],
    shape: LayerShape,
    *,
    matmul: Callable[[Parameter, LayerShape], Op] | None = None,
    core: Callable[[Layer, LayerShape], Sequence[Op]] | None = None,
) -> list[Yield]:
    """The ops of `forward_layer` in order, each with the kind of activation that it yields."""
    matmul, core = matmul or matmul_op, core or mixer_core
    mixer = tuple(r for r in rows if r.component in MIXER_COMPONENTS or layer.mlp is None)
    mlp = tuple(r for r in rows if r not in mixer)
    norms = max(len(layer.norms), 1) / ((layer.mixer is not None) + (layer.mlp is not None))
    ops: list[Yield] = []
    if layer.mixer is not None:
        ops += _mixer_block(cfg, layer, norms, mixer, shape, matmul, core)
    if layer.mlp is not None:
        ops += _mlp_block(cfg, layer, norms, mlp, shape, matmul)
    return ops


def _mixer_block(
    cfg: ModelConfig,
    layer: Layer,
    norms: float,
    rows: Sequence[Parameter],
    shape: LayerShape,
    matmul: Callable[[Parameter, LayerShape], Op],
    core: Callable[[Layer, LayerShape], Sequence[Op]],
) -> list[Yield]:
    inner, inside = _head_norm(layer, shape), core(layer, shape)
    casts, more = (), ()
    if core is mixer_core:  # serving's kernels rotate while they write the cache
        inner += _rotary(cfg, layer, shape)
        casts, more = _casts("attention", rows, shape)
        inside = in_tiles(inside, cfg, shape)
        if isinstance(layer.mixer, SoftmaxMixer):
            inside = [*inside, *around_the_kernel(layer.mixer, cfg, shape)]
    into, out = _over_tensor("attention", "attention", cfg, shape)
    summed, whole = _over_width("attention", "attention", rows, rows, shape)
    return [
        ("norm", _norm("attention", cfg, layer, norms, shape)),
        *_all("norm", [*into, *casts]),
        *_all("qkv", _matmuls_in(rows, shape, matmul, summed)),
        *_all("qkv", inner),
        *_all("attention", [*inside, *_output_gate(layer, shape), *whole, *more]),
        *_all("attention_out", [matmul(r, shape) for r in rows if _yields_d(r)]),
        *_all("attention_out", out),
    ]


def _mlp_block(
    cfg: ModelConfig,
    layer: Layer,
    norms: float,
    rows: Sequence[Parameter],
    shape: LayerShape,
    matmul: Callable[[Parameter, LayerShape], Op],
) -> list[Yield]:
    """The router stands before the exchange of tokens; it works on the norm's output."""
    moe = layer.mlp if isinstance(layer.mlp, Moe) else None
    router = [r for r in rows if r.component == "router"]
    rows = [r for r in rows if r not in router]
    share = block_share(moe, shape) if moe else 1.0
    into, out = expert_steps(cfg, moe, shape) if moe else ([], [])
    component = "routed_experts" if moe else "mlp_dense"
    gather, scatter = _over_tensor("mlp", component, cfg, shape, share)
    if matmul is not matmul_op and layer.parallel and "input" in layer.norms:
        gather = []  # a server's reads what the mixer's block has gathered
    summed, whole = _over_width("mlp", component, [*rows, *router], rows, shape)
    casts, more = _casts("mlp", rows, shape) if matmul is matmul_op else ((), ())
    biases = _expert_biases(moe, rows, shape) if matmul is matmul_op else []
    return [
        ("norm", _norm("mlp", cfg, layer, norms, shape)),
        *_all("norm", gather),
        *_all("mlp_in", [matmul(r, shape) for r in router]),
        *_all("dispatch", [*into, *casts]),
        *(
            ("mlp_gate" if op.name.endswith(GATE) else "mlp_in", op)
            for op in _matmuls_in(rows, shape, matmul, summed)
        ),
        *_all("activation", [*_activation(component, rows, shape), *biases, *whole, *more]),
        *_all("mlp_out", [matmul(r, shape) for r in rows if _yields_d(r)]),
        *_all("mlp_out", [*out, *scatter]),
    ]


def _over_tensor(
    block: str, component: str, cfg: ModelConfig, shape: LayerShape, share: Quantity = 1.0
) -> tuple[list[Op], list[Op]]:
    """What goes over tensor before and after a block."""
    if "tensor" not in shape.strategies:
        return [], []
    return (
        tensor_step(f"{block}.gather", "all_gather", component, cfg, shape, share),
        tensor_step(f"{block}.scatter", "reduce_scatter", component, cfg, shape, share),
    )


def _over_width(
    block: str,
    component: str,
    inward: Sequence[Parameter],
    outward: Sequence[Parameter],
    shape: LayerShape,
) -> tuple[list[Op], list[Op]]:
    """Where weights lie cut along D: sums after a block's first products, parts before its last."""
    if "stationary" not in shape.strategies:
        return [], []
    return (
        sums(f"{block}.sums", component, inward, shape),
        parts(f"{block}.parts", component, outward, shape),
    )


def _matmuls_in(
    rows: Sequence[Parameter],
    shape: LayerShape,
    matmul: Callable[[Parameter, LayerShape], Op],
    summed: Sequence[Op],
) -> list[Op]:
    """The matmuls into a block; what `summed` adds up stands before rows that need it whole.

    Servers run all products of the block's input together (q_down and kv_down as one kernel in
    vLLM's and SGLang's fused_qkv_a_proj), so these come first, with sums and without.
    """
    first = [r for r in rows if not _yields_d(r)]
    if matmul is not matmul_op:
        first.sort(key=lambda row: not contracts_width(row))
    wide = sum(contracts_width(r) for r in first) if summed else len(first)
    ops = [matmul(r, shape) for r in first]
    return [*ops[:wide], *summed, *ops[wide:]]


def _all(kind: ActivationKind, ops: Sequence[Op]) -> list[Yield]:
    return [(kind, op) for op in ops]


def _yields_d(row: Parameter) -> bool:
    return any(d == "D" and d not in row.contracts for d, _ in row.dims)


def matmul_op(row: Parameter, shape: LayerShape) -> Op:
    """One matmul row: [m, k] x [k, n] per device, experts as a batch of such products.

    Its weights are read from HBM, without copies and padding; what comes in and goes out may stay
    on the chip.
    """
    m, batch = shape.tokens, float(row.batches)
    tensor = shape.degree("tensor")
    if is_expert(row):
        m, batch = expert_batch(float(row.active), row.batches, shape)
        tensor = 1.0 if shape.choices.expert_over_tensor else tensor
    k, n = _local_dims(row, tensor)
    if "stationary" in shape.strategies:
        m, k, n = local_matmul(row, m, k, n, shape.stationary)
    exact = row.component in shape.exact
    stored = dtype_bytes(shape.activations if exact else shape.weights)
    moved = (m * k + m * n) * batch * dtype_bytes(shape.activations)
    least = row.contracted * row.outputs / (tensor * shape.stationary) * batch * stored
    every = k * n * batch * stored + moved
    return Op(
        id=row.name,
        name=row.name,
        phase="forward",
        component=row.component,
        op_class="matmul",
        flops={shape.activations if exact else shape.compute: 2.0 * m * k * n * batch},
        hbm_bytes=every,
        on_chip_bytes=every - least,
        matmul=Matmul(m=m, k=k, n=n, batch=batch, weight_bytes=stored),
        head_dims=_head_dims(row) if shape.choices.stack_row.whole_heads else (),
    )


def _head_dims(row: Parameter) -> tuple[int, ...]:
    """The width of the heads that a row of attention's weights is laid out by."""
    return tuple(n for letter, n in row.dims if letter in "HU" and row.component == "attention")


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


QUANTISED = 2.0
"""Copies of one byte per element of a quantised input: as it is for the product with the weight,
transposed for that of the weight's gradient (Transformer Engine's cast_transpose; an mxfp8 tensor
has a row-wise and a column-wise copy, as its scales lie along the contracted dim)."""


def _casts(
    block: str, rows: Sequence[Parameter], shape: LayerShape
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """What casts the inputs of a block's first and last products where these are quantised.

    Products of one input share its copies. The transposed op is the cast of the gradients that come
    back. Weights are cast once a step, which is left out.
    """
    wide, narrow = dtype_bytes(shape.activations), dtype_bytes(shape.compute)
    if narrow >= wide:
        return (), ()
    first = [r for r in rows if not _yields_d(r)][:1]
    last = [r for r in rows if _yields_d(r)][:1]
    traffic = wide + QUANTISED * narrow
    return tuple(
        tuple(
            make_op(f"{block}.{name}", row.component, "elementwise", hbm_bytes=size * traffic)
            for row in part
            if np.any(size := _input_size(row, shape))
        )
        for name, part in (("cast_in", first), ("cast_out", last))
    )  # type: ignore[return-value]


def _input_size(row: Parameter, shape: LayerShape) -> Quantity:
    """Elements of a product's left input on one device."""
    product = matmul_op(row, shape).matmul
    assert product is not None
    return product.m * product.k * product.batch


def _head_norm(layer: Layer, shape: LayerShape) -> list[Op]:
    """Norms of queries and keys: one read and one write of both."""
    mixer = layer.attention
    if mixer is None or getattr(mixer, "qk_norm", "none") == "none":
        return []
    width = (mixer.heads + kv_heads(mixer)) * mixer.head_dim / shape.degree("tensor")
    traffic = 2 * width * shape.mixer_tokens * dtype_bytes(shape.activations)
    return [make_op("attention.qk_norm", "norms", "elementwise", hbm_bytes=traffic)]


def _rotary(cfg: ModelConfig, layer: Layer, shape: LayerShape) -> list[Op]:
    """Rotation of queries and keys, one read and one write; none with learned positions."""
    match layer.attention:
        case Attention() as mixer if not cfg.position_rows:
            width = (mixer.heads + mixer.kv_heads) * mixer.head_dim
        case LatentAttention() as mixer:
            width = (mixer.heads + 1) * mixer.rope_head_dim
        case _:
            return []
    traffic = 2 * width / shape.degree("tensor") * shape.tokens * dtype_bytes(shape.activations)
    return [make_op("attention.rotary", "attention", "elementwise", hbm_bytes=traffic)]


def _output_gate(layer: Layer, shape: LayerShape) -> list[Op]:
    """The gate on the mixer's output: two reads and one write."""
    mixer = layer.attention
    if mixer is None or not getattr(mixer, "gated", False):
        return []
    width = mixer.heads * mixer.v_head_dim / shape.degree("tensor")
    traffic = 3 * width * shape.mixer_tokens * dtype_bytes(shape.activations)
    return [make_op("attention.gate_product", "attention", "elementwise", hbm_bytes=traffic)]


def mixer_core(layer: Layer, shape: LayerShape) -> list[Op]:
    """The mixer between its projections: attention or a scan over the whole sequence."""
    ops: list[Op] = []
    for part in layer.by_mixer:
        if isinstance(part.mixer, SoftmaxMixer):
            ops += [*own_convolutions(part, shape), *_attention(part, part.mixer, shape)]
        else:
            ops += recurrence(part, shape)
    return ops


def _attention(layer: Layer, mixer: SoftmaxMixer, shape: LayerShape) -> list[Op]:
    """Attention with its exchange over context.

    Flash attention: scores never leave the chip; Q, K, V are read and the output is written. With
    the kernel "scores" all T x S of them are computed, masked or not, and pass through memory.
    """
    whole = shape.choices.attention_kernel == "scores"
    flops_of = packed_flops if "packing" in shape.strategies else _attention_flops
    width = (mixer.head_dim + mixer.v_head_dim) * dtype_bytes(shape.activations)
    tensor = shape.degree("tensor")
    # Bytes per token of queries and output, and of keys and values, of which a device reads those
    # of the whole sequence.
    queries, keys = mixer.heads / tensor * width, np.ceil(kv_heads(mixer) / tensor) * width
    flops = flops_of(layer, shape, shape.causal and not whole)
    core = make_op(
        "attention.scores" if whole else "attention.core",
        CORE,
        "attention",
        # Recipes that multiply in fp8 leave the core in 16 bits (Transformer Engine's default,
        # MaxText fp8, DeepSeek-V3 section 3.3.1).
        flops={shape.activations: flops * shape.tokens / tensor},
        hbm_bytes=shape.tokens * (queries + keys * shape.degree("context")),
        head_dims=() if whole else (mixer.head_dim, mixer.v_head_dim),
    )
    ops = [core, *_softmax(mixer, shape)] if whole else [core]
    if "context" not in shape.strategies:
        return ops
    before, after = context_exchanges(mixer, queries, keys, shape)
    return [*before, *ops, *after]


def _attention_flops(layer: Layer, shape: LayerShape, causal: bool) -> Quantity:
    return attention_flops_per_token(layer, shape.context, causal=causal)


def _softmax(mixer: SoftmaxMixer, shape: LayerShape) -> list[Op]:
    scores = mixer.heads / shape.degree("tensor") * shape.tokens * shape.context
    size = SCORE_PASSES * SCORE_BYTES * scores
    return [make_op("attention.softmax", CORE, "elementwise", hbm_bytes=size)]


def _activation(component: str, rows: Sequence[Parameter], shape: LayerShape) -> list[Op]:
    """The elementwise activation: reads what the matmuls in wrote, writes what those out read."""
    outward = sum(_rows_wide(r, r.contracted, shape) for r in rows if _yields_d(r))
    inward = sum(_rows_wide(r, r.outputs, shape) for r in rows if not _yields_d(r))
    traffic = (inward + outward) * shape.mixer_tokens * dtype_bytes(shape.activations)
    return [make_op("mlp.activation", component, "elementwise", hbm_bytes=traffic)]


EXPERT_BIAS = 24.0
"""Bytes per output of a biased expert's product: Megatron-LM splits the outputs by expert, adds
each bias in f32, joins them and casts (moe/experts.py); what that moves is assumed."""


def _expert_biases(moe: Moe | None, rows: Sequence[Parameter], shape: LayerShape) -> list[Op]:
    """Adding the biases of routed experts; a fused kernel adds those of its first products."""
    if moe is None or not moe.bias or not shape.choices.stack_row.splits_biases:
        return []
    fused = shape.choices.grouped_kernel == "fused"
    own = [r for r in rows if is_expert(r) and (_yields_d(r) or not fused)]
    wide = sum(_rows_wide(r, r.outputs, shape) for r in own)
    size = wide * shape.mixer_tokens * EXPERT_BIAS
    return [make_op("experts.bias", "routed_experts", "elementwise", hbm_bytes=size)]


def _rows_wide(row: Parameter, width: int, shape: LayerShape) -> Quantity:
    """Elements per token of one side of an MLP's row on this device; experts see the tokens of
    their whole group."""
    if row.component == "other" or not tensor_letter(row):
        return 0.0
    experts = shape.degree("expert") * shape.expert_load if is_expert(row) else 1.0
    return float(row.active * row.batches * width) * shape.compute_share(row) * experts


def _norm(name: str, cfg: ModelConfig, layer: Layer, norms: float, shape: LayerShape) -> Op:
    """Residual add and first norm, fused: read the stream and the block's output, write the sum and
    the norm (4 passes); every further norm of the block reads and writes once. Of s streams
    (hyper-connections) a block's input is read from all, and all are read, mixed and written with
    its output (3 s + 2)."""
    streams = max(layer.streams, 1)
    passes = (4 if streams == 1 else 3 * streams + 2) + 2 * (norms - 1)
    width = cfg.d_model / shape.stationary
    traffic = passes * shape.norm_tokens * width * dtype_bytes(shape.activations)
    return make_op(f"{name}.norm", "norms", "elementwise", hbm_bytes=traffic)


def chain(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Each op after the one before it, the first after none: what a block's data flow demands."""
    chained = [changed(op, after=()) for op in ops[:1]]
    for op in ops[1:]:
        chained.append(changed(op, after=(chained[-1].id,)))
    return tuple(chained)


def backward_layer(forward: Sequence[Op]) -> tuple[Op, ...]:
    """The backward pass of a chained forward pass, in reverse order.

    A matmul becomes two of the same FLOPs and bytes: dX = dY W^T (phase "backward") and
    dW = X^T dY (phase "weight", nothing of the layer waits for it). Attention makes five products
    for two (scores are made again from the saved statistics: FlashAttention-2, section 3.1),
    elementwise ops move twice the bytes, and each collective becomes its transpose (ch. 3.3.2).
    """
    return chain([op for forth in reversed(forward) for op in _transposed(forth)])


_BACKWARD_FACTOR = {"attention": 2.5, "scan": 3.3, "elementwise": 2.0}
"""FLOPs and bytes of the backward pass over those of the forward pass; 1 for all others."""

_BY_NAME = {"attention.scores": 2.0, "attention.ring": 2.0}
"""With scores in memory nothing is made again; a ring also carries the gradients of its blocks."""


def _transposed(op: Op) -> list[Op]:
    """The ops that the backward pass runs for one of the forward pass."""
    factor = _BY_NAME.get(op.id, _BACKWARD_FACTOR.get(op.op_class, 1.0))
    collective = op.collective
    if collective is not None:
        swap = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
        kind = swap.get(collective.kind, collective.kind)
        size = collective.bytes * factor
        collective = changed(collective, kind=kind, bytes=size)  # type: ignore[arg-type]
    back = changed(
        op,
        id=f"d.{op.id}",
        name=f"d {op.name}",
        phase="backward",
        flops={dtype: f * factor for dtype, f in op.flops.items()},
        hbm_bytes=op.hbm_bytes * factor,
        on_chip_bytes=op.on_chip_bytes * factor,
        collective=collective,
    )
    if op.matmul is None:
        return [back]
    m = op.matmul
    # [m, n] x [n, k] and [k, m] x [m, n].
    inputs = changed(back, matmul=changed(m, k=m.n, n=m.k))
    weights = changed(back, id=f"w.{op.id}", name=f"dW {op.name}", phase="weight")
    return [inputs, changed(weights, matmul=changed(m, m=m.k, k=m.m))]
