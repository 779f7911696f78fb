"""Bytes that come and go while a layer's backward pass or the loss is at work, on one device.

Gathered parameters, what is recomputed, gradients of activations, buffers of exchanges, logits.
XLA computes what is elementwise of arrays at hand inside the matmuls that read it: outputs of norms
and activations never lie in memory while a layer is at work. Op by op all of them do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.activations import Activation
from shardwise.models.specs import Layer, Moe, SoftmaxMixer
from shardwise.planner.step.parts import Tensors
from shardwise.planner.step.shape import TrainShape, kv_heads
from shardwise.planner.step.strategies.lora import unpacked_bytes
from shardwise.planner.step.strategies.remat import bytes_of, kept_activations, place_of
from shardwise.plans.context_methods import context_row
from shardwise.units import dtype_bytes
from shardwise.work import Quantity, largest


@dataclass(frozen=True, slots=True)
class Working:
    """What comes and goes: in the backward pass of a layer, and at the loss. Where the loss takes
    more than the `room` of a device, a compiler may spare `again` of it: it gathers the vocabulary
    matrix once more for its second matmul rather than keep it (a few thousandths of a step)."""

    backward: Quantity
    loss: Quantity
    again: Quantity = 0.0
    room: float = inf


def working(tensors: Tensors, shape: TrainShape, share: Quantity) -> Working:
    """What comes and goes on a stage with a share of the layers."""
    cfg, gathered = tensors.cfg, gathered_bytes(tensors, shape, share)
    ends, logits = gathered_ends(tensors, shape), logit_bytes(cfg, shape)
    stays, fixed = stays_gathered(shape), exchange_bytes(cfg, shape)
    return working_of(gathered, layer_bytes(cfg, shape), fixed, ends, logits, shape, stays)


def stays_gathered(shape: TrainShape) -> float:
    """1 where gathered parameters stay from the forward pass to the backward pass, else 0."""
    return float(shape.weight_gather != "per_pass")


def working_of(
    gathered: Quantity,
    layer: Quantity,
    fixed: Quantity,
    ends: Sequence[Quantity],
    logits: Sequence[Quantity],
    shape: TrainShape,
    stays: Quantity,
) -> Working:
    """From `gathered_bytes`, `layer_bytes`, `exchange_bytes`, `gathered_ends`, `logit_bytes` and
    `stays_gathered`; of the shape what no search chooses. The matrix of the
    vocabulary is gathered again where XLA for TPUs stores the logits' gradient; where it does not,
    two matmuls read the logits side by side, and libtpu spared nothing (docs/lab/log.md)."""
    loss = loss_bytes(ends, logits, shape.eager)
    spared = np.where(np.asarray(ends[2]) > 0, ends[0], 0.0)
    return Working(
        backward=gathered + layer + fixed,
        loss=loss + gathered * stays + fixed,
        again=0.0 if shape.eager or shape.loss_stored else spared,
        room=shape.room,
    )


def layer_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """What the backward pass of the widest layer needs on top of what is kept: what it recomputes,
    the gradients at work, and buffers of its exchanges."""
    return largest(_layer(cfg, layer, shape) for layer in cfg.groups)


def _layer(cfg: ModelConfig, layer: Layer, shape: TrainShape) -> Quantity:
    saved = kept_activations(cfg, layer, shape)
    tape = [a for a in saved if a.tape and (shape.tapes or a.kind not in ("activation", "norm"))]
    again = [a for a in tape if place_of(a, shape) != "keep"]
    return (
        bytes_of(again, shape)
        + _gradients(cfg, tape, shape)
        + _expert_buffers(cfg, layer, shape)
        + _context_buffers(layer, shape)
        + _tensor_buffers(cfg, shape)
    )


def _gradients(cfg: ModelConfig, tape: Sequence[Activation], shape: TrainShape) -> Quantity:
    """Gradients alive at once: of what goes into and comes out of the widest elementwise op (an
    MLP's activation, or queries, keys and values), and of the stream."""
    inner = shape.layer_shape
    tape = [replace(a, fed=False) for a in tape]  # gradients are not quantised
    mlp = bytes_of(
        [a for a in tape if a.kind in ("mlp_in", "mlp_gate", "activation") and a.sharded], shape
    )
    mixer = bytes_of([a for a in tape if a.kind in ("qkv", "attention") and a.sharded], shape)
    stream = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    return np.maximum(mlp, mixer) + stream


def _expert_buffers(cfg: ModelConfig, layer: Layer, shape: TrainShape) -> Quantity:
    """What an all-to-all receives: the rows of a device, in and out; a compiled dropless exchange's
    once more, in the tiles of the products, since rows travel whole."""
    inner, copies = shape.layer_shape, 3 if shape.ragged and not shape.eager else 2
    if not isinstance(layer.mlp, Moe):
        return 0.0
    width = (layer.mlp.latent_dim or cfg.d_model) * dtype_bytes(inner.activations)
    slots = inner.norm_tokens * layer.mlp.computed_per_token * shape.expert_room
    return np.where(np.asarray(inner.expert_group) > 1, copies * slots * width, 0.0)


def exchange_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """What HybridEP allocates once, and keeps: a way to the experts and one back that have room for
    every token of the devices that share experts, each with f32 weights of all of those experts,
    as if one device got all (DeepEP, branch hybrid-ep, csrc/hybrid_ep/buffer/intranode.cu)."""
    inner, moes = shape.layer_shape, [x.mlp for x in cfg.groups if isinstance(x.mlp, Moe)]
    if shape.dispatcher != "hybridep" or not moes:
        return 0.0
    group = np.asarray(inner.expert_group)
    each = (
        (mlp.latent_dim or cfg.d_model) * dtype_bytes(inner.activations) + 4.0 * mlp.experts
        for mlp in moes
    )
    return np.where(group > 1, 2 * inner.norm_tokens * group * max(each), 0.0)


def _tensor_buffers(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """What lies whole under sequence parallelism while XLA works on an MLP's gradient: the gathered
    input, the gathered gradient of the output, and the sum that is to be scattered."""
    inner = shape.layer_shape
    if shape.eager or not shape.sequence_parallel:
        return 0.0
    whole = inner.tokens * cfg.d_model * dtype_bytes(inner.activations)
    return np.where(np.asarray(inner.degree("tensor")) > 1, 3 * whole, 0.0)


def _context_buffers(layer: Layer, shape: TrainShape) -> Quantity:
    """Keys and values that a device has at once by its context method, and their gradients."""
    inner, mixer = shape.layer_shape, layer.mixer
    if not isinstance(mixer, SoftmaxMixer):
        return 0.0
    width = np.ceil(kv_heads(mixer) / inner.degree("tensor")) * (mixer.head_dim + mixer.v_head_dim)
    block = inner.tokens * width * dtype_bytes(inner.activations)
    context = inner.degree("context")
    held = 2 * block * context_row(shape.context_method).held(context)
    return np.where(np.asarray(context) > 1, held, 0.0)


def gathered_bytes(tensors: Tensors, shape: TrainShape, share: Quantity) -> Quantity:
    """Gathered parameters: the layer in use, and the whole gradient of its largest matrix, as XLA
    scatters each where it is made. Op by op the next layer is there too, and the whole gradient of
    a layer (PyTorch's FSDP prefetches, and scatters at the layer's end), or one matrix where a
    library goes by matrices. All layers of the stage
    stay gathered where they are not gathered before every pass. A quantised layer unpacks one
    matrix at a time."""
    groups = [[r for r in rows if not r.shares] for rows in tensors.groups]
    single = shape.library_row.gathers_matrices
    ahead, at_once = (2, sum) if shape.eager and not single else (1, largest)
    whole = largest if single else sum
    grad = largest(at_once(_extra(r, shape) * shape.trains(r) for r in mine) for mine in groups)
    held = ahead * largest(whole(_gathered(r, shape) for r in mine) for mine in groups)
    if shape.weight_gather != "per_pass":
        layers = sum(_gathered(r, shape) * r.layers for mine in groups for r in mine)
        held = layers * share
    unpacked = largest(unpacked_bytes(mine, shape) for mine in groups)
    reduced = 4.0 if shape.library_row.sums_wide else dtype_bytes(shape.dtypes.grad)
    return held + grad * reduced + unpacked


def _gathered(row: Parameter, shape: TrainShape) -> Quantity:
    """Bytes of a row that are on the device only while gathered."""
    return _extra(row, shape) * shape.gathered_bytes(row)


RING_PIECES = (8, 32)
"""XLA cuts a matmul into a ring of at most 32 pieces: `max_windowed_einsum_iteration` by default
(openxla/xla, xla/service/spmd/spmd_partitioner.h). Of 4 pieces none was made (docs/lab/log.md)."""


def gathered_ends(tensors: Tensors, shape: TrainShape) -> tuple[Quantity, ...]:
    """Bytes of the gathered vocabulary matrix and of its gradient before that is scattered, and 1
    where XLA stores the gradient of the logits, else 0.

    It always does for GPUs. For TPUs it stores it where the matrix's gradient is scattered by a
    ring of `RING_PIECES` devices, which reads the logits' gradient piece by piece, and where only
    one dim of the tokens is cut; nowhere where the compiler makes no rings.
    """
    ends = [r for r in tensors.rows if r.group is None]
    size = largest(_extra(r, shape) for r in ends)
    trained = largest(_extra(r, shape) * shape.trains(r) for r in ends)
    stored = np.asarray(shape.degree("fsdp") * shape.degree("expert"))
    copies = shape.degree("data") * shape.degree("replica") if shape.zero else 1.0
    pieces = np.where(stored > 1, stored, copies)
    least, most = RING_PIECES
    alone = np.asarray(shape.degree("context")) == 1
    by_a_ring = (pieces >= least) & (pieces <= most) & alone & shape.rings
    written = np.where(by_a_ring | shape.loss_stored, 1.0, 0.0)
    return size * dtype_bytes(shape.weights), trained * dtype_bytes(shape.dtypes.grad), written


def _extra(row: Parameter, shape: TrainShape) -> Quantity:
    """Elements of a row that are on the device only while gathered."""
    return row.size * (shape.compute_share(row) - shape.stored_share(row))


def logit_bytes(cfg: ModelConfig, shape: TrainShape) -> tuple[Quantity, Quantity]:
    """Logits of one microbatch, or of one of its pieces, in f32, and their gradient in the dtype of
    the activations, in which the matmuls of the backward pass read it. Run op by op (PyTorch) the
    gradient is f32 first, and 16-bit logits and their gradient stand beside their f32 copy and the
    f32 probabilities; where the loss works in place, only one of either. A vocabulary cut over
    tensor takes `loss_copies` more in f32. Where the
    logits of the model's output live on, they, the log-probabilities and the gradients of both
    steps of the loss are there in f32; where all of them are gathered over tensor, their 16-bit
    form and the last three; where the loss stays in 16 bits, logits, log-probabilities and the
    gradients of both steps. A fused loss has logits and gradient as the matmuls write and read
    them. Capped logits leave what their cap's gradient reads, unless that is computed where it is
    read."""
    size = dtype_bytes(shape.layer_shape.activations)
    width = cfg.d_model if shape.library_row.pieced_loss else cfg.vocabulary / shape.logit_chunks
    logits = shape.tokens * width / shape.degree("tensor")
    made, gradient = _plain_logits(shape, logits)
    written = not shape.fuses_loss if shape.eager else shape.loss_stored
    capped = size * logits if cfg.capped_logits and written else 0.0
    return made + capped, gradient


def _plain_logits(shape: TrainShape, logits: Quantity) -> tuple[Quantity, Quantity]:
    """The same bytes of so many logits of a model that does not cap them."""
    size = dtype_bytes(shape.layer_shape.activations)
    if shape.library_row.gathers_logits and not shape.fuses_loss:
        whole = logits * shape.degree("tensor")
        return (size + 4.0) * whole, 8.0 * whole
    if shape.stack_row.loss_in_place:
        return 4.0 * logits, size * logits
    if shape.eager and shape.fuses_loss:
        return size * logits, size * logits
    if shape.library_row.output_logits and not shape.fuses_loss:
        return 4.0 * logits, 12.0 * logits
    if shape.library_row.narrow_loss:
        return size * logits, 3.0 * size * logits
    if shape.eager:
        cut = np.asarray(shape.degree("tensor")) > 1
        more = 4.0 * np.where(cut, shape.stack_row.loss_copies, 0)
        return 4.0 * logits, (4.0 + more + (2 * size if size < 4 else 0.0)) * logits
    return 4.0 * logits, size * logits


def loss_bytes(ends: Sequence[Quantity], logits: Sequence[Quantity], eager: bool) -> Quantity:
    """Bytes at the fullest moment of the loss, from `gathered_ends` and `logit_bytes`.

        op by op (PyTorch)                 matrix + its gradient + logits + their gradient
        XLA, logits' gradient stored       matrix + logits' gradient + max(logits, its gradient)
        XLA, logits' gradient not stored   matrix + logits + its gradient

    Where it is stored, the logits are freed before the matrix's gradient is made. Where it is not,
    the matmuls that read it compute it from the logits, which stay until both have run.
    """
    (matrix, matrix_gradient, written), (made, gradient) = ends, logits
    if eager:
        return matrix + matrix_gradient + made + gradient
    apart = gradient + np.maximum(made, matrix_gradient)
    return matrix + np.where(np.asarray(written) > 0, apart, made + matrix_gradient)
