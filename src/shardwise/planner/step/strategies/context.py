"""Context parallelism: a sequence is cut over `context`, and attention sees all of it.

Queries `q[B, T_context, N, H]` meet keys and values of the whole sequence, by one of

- all_gather: `k[B, S_context, K, H]` and v are gathered to `k[B, S, K, H]` before the core, their
  gradients reduce-scattered after it (Llama 3, arXiv 2407.21783, section 3.3.2);
- ring: blocks of k and v go round the ring, each hop under the attention to the block before
  (Ring Attention, arXiv 2310.01889); the backward pass sends the blocks and their gradients;
- ulysses: an all-to-all makes `q[B, T, N_context, H]` and one turns the output back (DeepSpeed
  Ulysses, arXiv 2309.14509); KV heads fewer than devices are replicated.

Causal work is counted as balanced: a device holds one chunk from the front and one from the back of
the sequence (zig-zag), so that every device has the mean.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.components import CORE
from shardwise.models.specs import SoftmaxMixer
from shardwise.planner.step.shape import LayerShape, kv_heads
from shardwise.plans.context_methods import context_row
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, changed, exchange, make_op


def context_exchanges(
    mixer: SoftmaxMixer, queries: Quantity, keys: Quantity, shape: LayerShape
) -> tuple[list[Op], list[Op]]:
    """What goes over context before and after attention. `queries` are bytes per token and device
    of queries and output, `keys` those of keys and values."""
    row = context_row(shape.choices.context_method)
    context = shape.degree("context")
    moved = shape.tokens * row.moved(context)

    def wire(op_id: str, size: Quantity) -> list[Op]:
        return [exchange(op_id, row.collective, CORE, ("context",), size)]

    if not row.cuts_heads:
        return wire(row.op, moved * keys), []
    # Half of `queries` is the queries, the other half the output.
    share = mixer.head_dim / (mixer.head_dim + mixer.v_head_dim)
    local = np.ceil(kv_heads(mixer) / shape.degree("tensor"))
    copies = np.maximum(context / local, 1.0)
    inward = wire(row.op, moved * (queries * share + keys * copies))
    return inward, wire("attention.to_tokens", moved * queries * (1 - share))


def in_tiles(ops: Sequence[Op], cfg: ModelConfig, shape: LayerShape) -> Sequence[Op]:
    """A mixer's ops, the core of attention as a loop over tiles where software has no kernel for
    tokens that are cut: in a ring of rows that are not dealt (`plans/stacks.py`)."""
    row, loops = context_row(shape.choices.context_method), shape.choices.stack_row.tiles_cut_rows
    kernel = row.kernel == "all" or row.dealt(cfg.mixer_kinds)
    if not loops or kernel or "context" not in shape.strategies:
        return ops
    cut = np.where(np.asarray(shape.degree("context")) > 1, 1.0, 0.0)
    found: list[Op] = []
    for op in ops:
        if op.op_class != "attention":
            found.append(op)
            continue
        tiles = changed(op, id=f"{op.id}.tiles", name=f"{op.name} in tiles", tiled=True)
        found += [_share(op, 1.0 - cut), _share(tiles, cut)]
    return found


def around_the_kernel(mixer: SoftmaxMixer, cfg: ModelConfig, shape: LayerShape) -> list[Op]:
    """What software whose kernel knows no cut rows does beside it where rows are dealt; twice as
    much on the way back.

    In a ring (`runtime/attention/ring_kernel.py`) halves of queries, keys and values are chosen and
    answers merged in f32: per hop 9 times the bytes of queries and output and 3 times those of keys
    and values. Gathered keys and values are read and written once to be in order
    (`runtime/attention/all_gather.py`)."""
    row, apart = context_row(shape.choices.context_method), shape.choices.stack_row.tiles_cut_rows
    if not (apart and row.dealt(cfg.mixer_kinds)) or "context" not in shape.strategies:
        return []
    width = (mixer.head_dim + mixer.v_head_dim) * dtype_bytes(shape.activations)
    tensor = shape.degree("tensor")
    keys, context = np.ceil(kv_heads(mixer) / tensor), shape.degree("context")
    local = shape.tokens * width
    if row.kernel == "all":
        size = np.where(np.asarray(context) > 1, local * 2 * keys * context, 0.0)
        return [make_op("attention.order", CORE, "elementwise", hbm_bytes=size)]
    size = local * (9 * mixer.heads / tensor + 3 * keys) * (context - 1)
    return [make_op("attention.merges", CORE, "elementwise", hbm_bytes=size)]


def _share(op: Op, share: Quantity) -> Op:
    """An op of so much of its work."""
    return changed(
        op,
        flops={dtype: f * share for dtype, f in op.flops.items()},
        hbm_bytes=op.hbm_bytes * share,
        on_chip_bytes=op.on_chip_bytes * share,
    )
