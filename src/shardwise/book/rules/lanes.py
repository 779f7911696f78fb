"""Lanes and warps: what divergence costs a warp, and what a sum across lanes costs a vector unit.

Source: How To Scale Your Model, ch. 12 ("GPU architecture": warp schedulers, divergence) and ch. 2,
appendix C (the VPU's 8 x 128 lanes, the XLU that moves data between them).
"""

from dataclasses import dataclass

import numpy as np

from shardwise.errors import BadRequest
from shardwise.hardware import Chip
from shardwise.hardware.totals import WARP
from shardwise.work import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Cycles of a warp, the share of its lanes' cycles that do work, and how many times as long it
    takes as its longest path."""

    cycles: float
    share: float
    slowdown: float


def warp_divergence(lanes: Quantity, instructions: Quantity) -> Divergence:
    """A warp whose lanes take several paths, so many `lanes` and `instructions` on each.

    It issues one instruction per cycle for all lanes, so paths run one after the other with the
    other lanes masked: cycles = sum n_i, and sum(l_i n_i) / (32 sum n_i) of the lanes work. Lanes
    of a vector unit without instruction pointers of their own (SIMD) must all run both sides.
    Raises BadRequest for more than 32 lanes.
    """
    taken, lengths = np.atleast_1d(lanes).astype(float), np.atleast_1d(instructions).astype(float)
    if taken.shape != lengths.shape:
        raise BadRequest(
            f"lanes has {taken.size} numbers and instructions {lengths.size}; give one of each "
            "per path"
        )
    if taken.sum() > WARP or np.any(taken < 0) or np.any(lengths <= 0):
        raise BadRequest(
            f"lanes are {taken.tolist()}; a warp has {WARP} in all, and each path instructions"
        )
    walked = lengths[taken > 0]
    cycles = float(walked.sum())
    work = float((taken * lengths).sum())
    return Divergence(
        cycles=cycles,
        share=work / (WARP * cycles) if cycles else 0.0,
        slowdown=cycles / float(walked.max()) if cycles else 1.0,
    )


def warps_hiding(latency_cycles: Quantity, busy_cycles: Quantity) -> Quantity:
    """Warps per scheduler that keep it busy: each waits `latency_cycles` for memory after
    `busy_cycles` of instructions, while the others run: 1 + latency / busy, rounded up."""
    return np.ceil(1 + np.divide(latency_cycles, busy_cycles))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSum:
    """Vector instructions of a sum: adds of whole registers, then moves between lanes and as many
    adds; and the share of all that the lanes' part is."""

    adds: Quantity
    moves: Quantity
    instructions: Quantity
    cross_lane_share: Quantity


def lane_sum(chip: Chip, elements: Quantity) -> LaneSum:
    """The sum of n f32 numbers on one vector unit of w lanes (8 x 128 on a TPU, 32 of a warp).

    ceil(n / w) - 1 adds make one register of them; log2(w) halvings make one number of that, each a
    move between lanes (the XLU's work, a shuffle on a GPU) and an add: a long sum costs what its
    elementwise adds do, a short one what the lanes' moves do.
    """
    gpu = chip.core_kind == "SM"
    lanes = WARP if gpu else int(chip.require("words_per_register"))
    adds = np.ceil(np.divide(elements, lanes)) - 1
    moves = np.ceil(np.log2(np.minimum(elements, lanes)))
    total = adds + 2 * moves
    share = np.divide(2 * moves, np.where(total > 0, total, 1))
    return LaneSum(adds=adds, moves=moves, instructions=total, cross_lane_share=share)
