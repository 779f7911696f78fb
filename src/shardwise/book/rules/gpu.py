"""The book's closed rules for training behind switches (ch. 12): thresholds per strategy.

C is a chip's dense peak, W_gpu what it sends into its node and W_node what a node of `domain` chips
sends into the scale-out network, all one-way; alpha = C / W of the level that a strategy crosses.
The MLP block of ch. 5 stands for the layer. Every argument may be an array.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardwise.hardware.chip import Chip
from shardwise.hardware.totals import TreeLevel, fat_tree, node_egress, switched_of
from shardwise.roofline.collectives import SHARP_GAIN
from shardwise.work import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Alphas:
    """Peak FLOP/s over one-way bytes/s, per level: tokens per chip that data parallelism needs."""

    node: float
    scale_out: float


def alphas(chip: Chip, dtype: str = "bf16") -> Alphas:
    """C / W_gpu and C / W_node of a chip behind switches: 2200 and 2475 on H100.

    Raises BadRequest for a chip on a torus, or without a catalogued scale-out link.
    """
    peak = chip.peak(dtype)
    return Alphas(node=peak / switched_of(chip).chip_oneway, scale_out=peak / node_egress(chip))


def few_groups_limit(alpha: Quantity, groups: Quantity) -> Quantity:
    """Data-parallel threshold over X groups (nodes, or stacks of nodes): alpha (X - 1) / X.

    A group keeps 1/X of the gradients itself, so two groups need half of what many need.
    """
    return alpha * (1 - 1 / groups)


def spanned_limit(alpha: Quantity, nodes: Quantity) -> Quantity:
    """Data-parallel threshold where a model's copy spans m nodes: alpha / m.

    Each node then sends only its share of the weights, over its own links.
    """
    return alpha / np.maximum(nodes, 1)


def sharp_limit(alpha: Quantity, gain: Quantity = 2.0) -> Quantity:
    """Threshold of pure data parallelism with in-network reduction: alpha / 2 by the formula; about
    alpha / 1.3 as measured (`roofline.collectives.SHARP_GAIN`)."""
    return alpha / gain


def tensor_limit_across(alpha: Quantity, d_ff: Quantity, domain: Quantity) -> Quantity:
    """Largest tensor degree over several nodes: domain + F / alpha, from F > alpha (Y - domain).

    `alpha` is that of the scale-out network; the (M-1)/M of M = Y / domain nodes is what a few
    nodes gain.
    """
    return domain + d_ff / alpha


def expert_d_ff(
    alpha: Quantity, experts_per_token: Quantity, degree: Quantity, domain: Quantity
) -> Quantity:
    """Least F at which Z-way expert parallelism is compute-bound.

    Math 4BkDF / (Z C), two ragged all-to-alls 4BD (Z - d)/(Z W) min(dk/Z, 1) with d chips per node,
    so F > alpha (Z - d) min(dk/Z, 1) / k: alpha (Z - d) / k up to Z = dk, and towards d * alpha
    (8 alpha) far above. 0 inside a node, where this rule does not bind.
    """
    few = np.maximum(degree - domain, 0) / experts_per_token
    # (Z - d) dk/Z / k with Z divided out: Z may be infinite.
    many = domain * np.maximum(1 - domain / degree, 0)
    return alpha * np.minimum(few, many)


def expert_degree(alpha: Quantity, experts_per_token: Quantity, d_ff: Quantity, domain: Quantity):
    """Largest Z that stays compute-bound: domain + kF / alpha, without end where F > domain *
    alpha (ch. 12, Expert Parallelism)."""
    few = domain + experts_per_token * d_ff / alpha
    return np.where(np.greater(d_ff, domain * alpha), np.inf, few)


def pipeline_transfer(
    *,
    batch_tokens: Quantity,
    d_model: Quantity,
    stages: Quantity,
    microbatches: Quantity,
    bandwidth: Quantity,
) -> Quantity:
    """Seconds on the critical path that a pipeline's forward pass spends between stages.

    (N_MB + N_stages - 2) hops of 2BD / (W N_MB) bytes in bf16.
    """
    hops = microbatches + stages - 2
    return hops * 2 * batch_tokens * d_model / (bandwidth * microbatches)


def pipeline_step(
    *,
    forward: Quantity,
    backward: Quantity,
    stages: Quantity,
    microbatches: Quantity,
    reduction: Quantity = 0.0,
    overlapped: bool = True,
) -> Quantity:
    """Seconds of a pipelined step with data parallelism around it.

    `forward` and `backward` are one microbatch of one stage, `reduction` the gradient all-reduce of
    one stage. Gradients are complete only in the last microbatch's backward pass, so the reduction
    hides behind that one pass at best, layer by layer, and behind nothing where not `overlapped`:
    (M + K - 1)(f + b) + max(reduction - b, 0).
    """
    hidden = backward if overlapped else 0.0
    busy = (microbatches + stages - 1) * (forward + backward)
    return busy + np.maximum(reduction - hidden, 0.0)


def sharp_saving(chips: Quantity) -> Quantity:
    """How much less a switch that reduces carries than an all-reduce of N chips without it: the two
    halves of a ring send 2V (N-1) bytes through it, the reducing one NV, so 2 (N-1) / N (ch. 12,
    quiz 4); 1.75 in a node of 8, where 1.3 is measured."""
    return 2 * (chips - 1) / chips


def joined_nodes(chip: Chip, nodes: int = 2) -> tuple[TreeLevel, ...]:
    """The levels of a tree that joins so many nodes and nothing more: the node, and above it a unit
    that each enters with its whole egress."""
    node, leaf = fat_tree(chip)[:2]
    cables = nodes * node_egress(chip)
    pair = replace(leaf, chips=nodes * node.chips, degree=nodes, cable_oneway=cables)
    return node, pair


def sharp_bandwidth(measured: Quantity, gain: Quantity = SHARP_GAIN) -> Quantity:
    """Bus bandwidth of an all-reduce with in-network reduction: that measured without it times the
    measured gain of 1.3 (ch. 12, In-network reductions)."""
    return measured * gain
