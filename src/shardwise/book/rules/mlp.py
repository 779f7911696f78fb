"""The MLP block of ch. 5 on an FSDP x tensor mesh: its math and its communication in seconds.

x[B, D] * W_in[D, F] * W_out[F, D] in bf16, per layer. Weights move over the X chips of FSDP or data
parallelism, activations over the Y chips of the tensor axis; either may have several physical axes,
M_X and M_Y, of bandwidth W each. W is what a ring uses of one axis (both ways of a torus link) or
what leaves one member of a switched group one-way. Arguments may be arrays that broadcast.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.book.rules.training import Combine
from shardwise.errors import BadRequest, check_known, entry_of
from shardwise.work import Quantity

Phase = Literal["forward", "backward"]
BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpTimes:
    """Seconds per layer: the matmuls, the weights' (or gradients') bytes and the activations'."""

    math: Quantity
    weights: Quantity
    activations: Quantity

    def comms(self, combine: Combine = "max") -> Quantity:
        """Both communications: the larger where they overlap, else their sum."""
        check_known("way to combine communication", combine, ("sum", "max"))
        if combine == "sum":
            return self.weights + self.activations
        return np.maximum(self.weights, self.activations)

    def ratio(self, combine: Combine = "max") -> Quantity:
        """T_math / T_comms: above 1 the layer is compute-bound; infinite without communication."""
        comms = np.asarray(self.comms(combine), float)
        with np.errstate(divide="ignore"):
            found = np.asarray(self.math, float) / comms
        return found if found.ndim else float(found)


def mlp_times(
    *,
    batch_tokens: Quantity,
    d_model: Quantity,
    d_ff: Quantity,
    peak_flops: Quantity,
    bandwidth: Quantity,
    fsdp: Quantity = 1,
    tensor: Quantity = 1,
    axes_x: Quantity = 1,
    axes_y: Quantity = 1,
    phase: Phase = "forward",
    replicated: bool = False,
    experts: Quantity = 1,
    experts_per_token: Quantity = 1,
) -> MlpTimes:
    """One layer's forward or backward pass (the table of ch. 5.2 over its bandwidths).

    Forward: math 4BkDF / (X Y C), weights 4EDF / (Y W M_X), activations 4BkD / (X W M_Y); backward
    twice the math and the weights' bytes and the same activations (dOut gathered, dIn scattered;
    errata 5.1). `replicated` weights (data parallelism, ZeRO-1) move nothing forward. A degree of 1
    moves nothing.
    """
    check_known("phase", phase, ("forward", "backward"))
    passes = 1 if phase == "forward" else 2
    matrices = 2 * d_model * d_ff
    moved = passes * (phase == "backward" or not replicated)
    tokens = batch_tokens * experts_per_token
    return MlpTimes(
        math=passes * 2 * tokens * matrices / (fsdp * tensor * peak_flops),
        weights=moved
        * BF16
        * experts
        * matrices
        * np.greater(fsdp, 1)
        / (tensor * bandwidth * axes_x),
        activations=2
        * BF16
        * tokens
        * d_model
        * np.greater(tensor, 1)
        / (fsdp * bandwidth * axes_y),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpTraffic:
    """FLOPs and bytes that one chip does and moves per layer and pass (the table of ch. 5.2)."""

    flops: Quantity | None
    weights: Quantity
    activations: Quantity

    @property
    def bytes(self) -> Quantity:
        """Weights, or their gradients, and activations."""
        return self.weights + self.activations


STRATEGIES = {"data": "x", "fsdp": "x", "tensor": "y", "fsdp+tensor": "xy"}
"""Which axes a strategy of ch. 5 cuts over: X its batch (and weights), Y its width."""


def mlp_traffic(
    strategy: str,
    *,
    phase: Phase = "forward",
    batch_tokens: Quantity | None = None,
    d_model: Quantity,
    d_ff: Quantity | None = None,
    fsdp: Quantity | None = None,
    tensor: Quantity | None = None,
) -> MlpTraffic:
    """FLOPs and bytes per chip of the MLP under "data", "fsdp", "tensor" or "fsdp+tensor".

    `batch_tokens`, D and F of the whole layer. A degree that the strategy does not use counts as 1.
    Bytes that do not depend on a value are given without it; FLOPs depend on all and are None
    without one. Raises BadRequest for another strategy, and for one whose bytes
    depend on what is not given.
    """
    axes = entry_of("strategy", strategy, STRATEGIES)
    used = {"batch_tokens": batch_tokens, "d_ff": d_ff}
    used |= {
        name: n for axis, name, n in (("x", "fsdp", fsdp), ("y", "tensor", tensor)) if axis in axes
    }
    moved = [*(["d_ff"] if "x" in axes else []), *(["batch_tokens"] if "y" in axes else [])]
    moved += ["fsdp", "tensor"] if len(axes) > 1 else []
    if lacking := [name for name in moved if used[name] is None]:
        raise BadRequest(f"the bytes of '{strategy}' depend on {', '.join(lacking)}; give each")
    times = mlp_times(
        batch_tokens=_or(batch_tokens, 0.0),
        d_model=d_model,
        d_ff=_or(d_ff, 0.0),
        peak_flops=1.0,
        bandwidth=1.0,
        fsdp=_or(fsdp, np.inf) if "x" in axes else 1,
        tensor=_or(tensor, np.inf) if "y" in axes else 1,
        phase=phase,
        replicated=strategy == "data",
    )
    flops = None if any(value is None for value in used.values()) else times.math
    return MlpTraffic(flops=flops, weights=times.weights, activations=times.activations)


def _or(value: Quantity | None, other: float) -> Quantity:
    return other if value is None else value
