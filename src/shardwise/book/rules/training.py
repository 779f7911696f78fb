"""The book's closed rules for training on a torus (ch. 4 to 6): degrees, thresholds, days, MFU.

Every argument may be an array. `alpha` is peak FLOP/s over the bandwidth of one mesh axis (both
ways on a ring, ch. 5.1): 2550 on v5p. `axes_x` and `axes_y` are the physical axes under FSDP and
under tensor parallelism. `combine` says how the two communications add up: "sum" when they do not
overlap (the book's first edition), "max" when they do (its latest). These are rules of thumb
beside the plans that the search finds, not the search.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.errors import BadRequest, check_known
from shardwise.models.training_state import TrainingState, training_state
from shardwise.units import DAY, YEAR, dtype_bytes
from shardwise.work import Quantity

Combine = Literal["sum", "max"]
Edition = Literal["first", "latest"]


def data_limit(alpha: Quantity, axes: Quantity = 1) -> Quantity:
    """Tokens per chip below which data parallelism and FSDP are bound by communication: alpha/M.

    With a data-centre network's alpha, tokens per slice per its bandwidth likewise.
    """
    return alpha / axes


def tensor_limit(alpha: Quantity, d_ff: Quantity, axes: Quantity = 1) -> Quantity:
    """Largest tensor degree that stays compute-bound: F * M / alpha (ch. 5.1.3)."""
    return d_ff * axes / alpha


def mixed_limit(
    alpha: Quantity,
    d_ff: Quantity,
    axes_x: Quantity = 2,
    axes_y: Quantity = 1,
    combine: Combine = "max",
) -> Quantity:
    """Tokens per chip below which the best FSDP x tensor mesh is communication-bound (ch. 5.1.4).

    alpha^2 / (M_X M_Y F) where the two overlap, four times that where they add up.
    """
    return {"max": 1, "sum": 4}[combine] * alpha**2 / (axes_x * axes_y * d_ff)


def x_opt(
    batch_tokens: Quantity,
    d_ff: Quantity,
    chips: Quantity,
    axes_x: Quantity = 2,
    axes_y: Quantity = 1,
) -> Quantity:
    """FSDP degree with the least communication, sum or max: sqrt(B N M_X / (F M_Y))."""
    return np.sqrt(batch_tokens * axes_x * chips / (d_ff * axes_y))


def x_balanced(
    batch_tokens: Quantity,
    d_ff: Quantity,
    chips: Quantity,
    alpha: Quantity,
    axes_x: Quantity = 2,
    axes_y: Quantity = 1,
) -> Quantity:
    """Largest FSDP degree at which summed communication still fits under the math: what the first
    edition of ch. 6 solves for. NaN where no degree does.

    The larger root of X^2 F / (N M_X) - X B F / (N alpha) + B / M_Y = 0 (ch. 5.4.3).
    """
    half = batch_tokens / alpha
    inside = half**2 - 4 * batch_tokens * chips / (d_ff * axes_x * axes_y)
    root = np.sqrt(np.where(np.asarray(inside) < 0, np.nan, inside))
    return axes_x / 2 * (half + root)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookMesh:
    """An FSDP x tensor mesh by the book's rule: the real-valued degree and its round one."""

    edition: Edition
    x: float
    fsdp: int
    tensor: int

    @property
    def chips(self) -> int:
        """Chips of the round mesh."""
        return self.fsdp * self.tensor


def book_mesh(
    *,
    batch_tokens: float,
    d_ff: float,
    chips: int,
    alpha: float,
    axes_x: int = 2,
    axes_y: int = 1,
    edition: Edition = "latest",
) -> BookMesh:
    """The book's FSDP x tensor mesh: X by the edition's rule, to the nearest power of two, and the
    largest power of two that fits beside it.

    Raises BadRequest where the first edition's rule has no answer.
    """
    if edition == "latest":
        x = float(x_opt(batch_tokens, d_ff, chips, axes_x, axes_y))
    else:
        x = float(x_balanced(batch_tokens, d_ff, chips, alpha, axes_x, axes_y))
    if np.isnan(x):
        least = float(mixed_limit(alpha, d_ff, axes_x, axes_y, "sum"))
        raise BadRequest(
            f"no FSDP degree keeps {batch_tokens:,.0f} tokens on {chips} chips compute-bound where "
            f"communications add up: it takes {least:,.0f} tokens per chip; "
            "use a larger batch or fewer chips"
        )
    fsdp = min(2 ** round(float(np.log2(max(x, 1.0)))), _floor_power(chips))
    return BookMesh(edition=edition, x=x, fsdp=fsdp, tensor=_floor_power(chips / fsdp))


def moe_limit(limit: Quantity, experts: Quantity, experts_per_token: Quantity) -> Quantity:
    """A data-parallel threshold for a mixture of experts: E/k times the dense one, as the gradients
    of all E experts move for the FLOPs of k (ch. 12, Data Parallelism)."""
    return limit * experts / experts_per_token


def tensor_d_ff(alpha: Quantity, degree: Quantity, axes: Quantity = 1) -> Quantity:
    """Least F at which a tensor degree stays compute-bound: Y * alpha / M (ch. 5.1.3)."""
    return degree * alpha / axes


def data_chips(batch_tokens: Quantity, tokens_per_chip: Quantity) -> Quantity:
    """Most chips that stay compute-bound at a threshold in tokens per chip; not rounded."""
    return batch_tokens / tokens_per_chip


def largest_replicated(hbm_bytes: Quantity, state: TrainingState | None = None) -> Quantity:
    """Parameters of the largest model that pure data parallelism holds: HBM over the bytes per
    parameter, 10 with bf16 weights and f32 moments (ch. 5.1.2)."""
    return hbm_bytes / (state or training_state()).total


def checkpoint_bytes(
    tokens: Quantity, layers: Quantity, width: Quantity, dtype: str = "bf16"
) -> Quantity:
    """Bytes of activations kept for backward, `width` elements per token and layer.

    After each of the three big matmuls the width is D + 2F (exercise 5.2).
    """
    return tokens * layers * width * dtype_bytes(dtype)


def pipeline_bubble(stages: Quantity, microbatches: Quantity) -> Quantity:
    """Share of a pipelined step in which a stage idles: (K - 1) / (M + K - 1) for K stages and M
    microbatches of one chunk each (GPipe, 1F1B)."""
    return (stages - 1) / (microbatches + stages - 1)


def petaflop_days(count: Quantity) -> Quantity:
    """FLOPs of so many days at 1e15 FLOP/s."""
    return count * PETA * DAY


PETA = 10**15


def sequence_limit(batch_tokens: Quantity, sequence_length: Quantity) -> Quantity:
    """Largest degree of data parallelism and FSDP without cutting sequences: one each (ch. 6.3)."""
    return batch_tokens / sequence_length


def min_chips(total_bytes: Quantity, bytes_per_chip: Quantity) -> Quantity:
    """Chips whose memory holds the bytes, spread evenly; rounded up."""
    return np.ceil(total_bytes / bytes_per_chip)


def training_seconds(
    flops: Quantity, chips: Quantity, peak_flops: Quantity, mfu: Quantity = 1.0
) -> Quantity:
    """Time of `flops` on `chips` at a utilisation of their peak (FLOP/s per chip)."""
    return flops / (chips * peak_flops * mfu)


def days(seconds: Quantity) -> Quantity:
    """Days of 24 hours."""
    return seconds / DAY


def years(seconds: Quantity) -> Quantity:
    """Years of 365 days."""
    return seconds / YEAR


def rescaled(seconds: Quantity, chips: Quantity, other_chips: Quantity) -> Quantity:
    """The same work on another number of chips at the same utilisation."""
    return seconds * chips / other_chips


def utilisation(flops: Quantity, chip_seconds: Quantity, peak_flops: Quantity) -> Quantity:
    """Share of the peak that a run reached: its FLOPs over chip-seconds x peak (Ex. 4.7)."""
    return flops / (chip_seconds * peak_flops)


def _floor_power(value: float) -> int:
    """Largest power of two up to a number of at least 1."""
    return 1 << (int(value).bit_length() - 1)


def least_batch(
    strategy: str,
    *,
    chips: Quantity,
    alpha: Quantity,
    axes: Quantity = 1,
    d_ff: Quantity = np.nan,
    axes_y: Quantity = 1,
    combine: Combine = "max",
) -> Quantity:
    """Least tokens per step at which a strategy on N chips is compute-bound (ch. 5.1).

    "data" and "fsdp": N alpha / M; "fsdp+tensor": N alpha^2 / (M_X M_Y F), four times that where
    the two communications add up, which needs `d_ff`. Tensor parallelism alone has no such batch:
    both sides grow with it. Raises BadRequest for another strategy and for a mix without `d_ff`.
    """
    check_known("strategy", strategy, ("data", "fsdp", "fsdp+tensor"))
    if strategy != "fsdp+tensor":
        return chips * data_limit(alpha, axes)
    if np.any(np.isnan(d_ff)):
        raise BadRequest("the least batch of fsdp+tensor depends on F; give d_ff")
    return chips * mixed_limit(alpha, d_ff, axes, axes_y, combine)
