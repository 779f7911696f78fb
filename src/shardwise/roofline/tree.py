"""Gathers and reductions over a fat tree, level by level, and the bytes through its switches.

`collectives.py` prices a mesh axis by its busiest link; here every level of the tree has a term of
its own, so that an answer can say which level binds. A level joins D children, each of S chips,
over a link of W bytes/s one-way per child. Source: How To Scale Your Model, ch. 12, "Cross-node
collectives", quiz 4 and its appendix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.hardware.totals import TreeLevel
from shardwise.work import Quantity


def gather_rate(level: TreeLevel) -> float:
    """Array bytes per second that a gather or a reduce-scatter over one level alone reaches:
    D W / (D - 1); 514 GB/s in an H100 node, 413 GB/s over the nodes of a scalable unit."""
    child = level.cable_oneway / level.degree
    return level.degree * child / (level.degree - 1)


def tree_seconds(
    bytes: Quantity,
    levels: Sequence[TreeLevel],
    *,
    inner: Quantity = 1,
    sharp: bool = False,
) -> tuple[Quantity, ...]:
    """Seconds per level of a gather of `bytes` over a tree; the collective takes the largest.

    The array may lie sharded over an inner axis of Y = `inner` chips: of every level those take
    min(D, max(1, Y/S)) children, and the D' = D / that which are left exchange V / Y each over the
    links of max(Y, S) / S children, so V (M-1)/M S / (W max(Y, S)). M counts what the link parts:
    the D' of this level and of all above, as a unit's link is the only way in for what lies under
    other units, however far; of the innermost level D' alone, as a chip has a NIC of its own for
    what comes from outside. A reduce-scatter takes the same, an all-reduce twice that, or with
    switches that reduce (`sharp`) V S / (W max(Y, S)), without (M-1)/M. The book leaves S out of
    its formula (errata 12.8) and has D' for M, which of a middle level is below what must enter.
    """
    seconds, under = [], [1, *(level.chips for level in levels)]
    parted: Quantity = 1.0
    for number in reversed(range(len(levels))):
        level, below = levels[number], under[number]
        child = level.cable_oneway / level.degree
        left = level.degree / np.clip(np.divide(inner, below), 1, level.degree)
        parted = parted * left if number else left
        share = np.where(parted > 1, 1.0, 0.0) if sharp else (parted - 1) / parted
        found = bytes * share * below / (child * np.maximum(inner, below))
        seconds.append(found if np.ndim(found) else float(found))
    return tuple(reversed(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchBytes:
    """Bytes into and out of a unit's switches during one collective."""

    ingress: Quantity
    egress: Quantity


def gather_bytes(bytes: Quantity, nodes: int, chips: int) -> dict[str, SwitchBytes]:
    """Bytes through the switch of a node and the one above it in a gather over M nodes of N chips.

    Node: V/M from its chips and V (M-1)/M from above come in, V/M up and V - V/(MN) to each chip go
    out: V and NV. Above: V in, (M-1) V out. (Quiz 4, question 1.)
    """
    own = bytes / nodes
    down = chips * (bytes - own / chips)
    return {
        "node": SwitchBytes(ingress=own + bytes * (nodes - 1) / nodes, egress=own + down),
        "top": SwitchBytes(ingress=nodes * own, egress=nodes * (bytes - own)),
    }


def sharp_bytes(bytes: Quantity, chips: int) -> SwitchBytes:
    """Bytes through a switch that reduces: every chip sends V (N-1)/N and later its reduced V/N,
    and gets as much, so NV each way. (Quiz 4, question 2.)"""
    each = bytes * (chips - 1) / chips + bytes / chips
    return SwitchBytes(ingress=chips * each, egress=chips * each)
