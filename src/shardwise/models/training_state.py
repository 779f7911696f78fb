"""Bytes that training keeps per parameter: the weight, its gradient, and Adam's state."""

from dataclasses import dataclass

from shardwise.units import dtype_bytes
from shardwise.work import Quantity

NONE = "none"
"""In place of a dtype: this copy is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Bytes by kind, per parameter or for `params` of them (`state * params`)."""

    params: Quantity
    gradients: Quantity
    master: Quantity
    moments: Quantity

    @property
    def optimizer(self) -> Quantity:
        """Master copy and both moments: what ZeRO-1 shards."""
        return self.master + self.moments

    @property
    def total(self) -> Quantity:
        """Weights, gradients and optimizer state."""
        return self.params + self.gradients + self.optimizer

    def __mul__(self, params: Quantity) -> "TrainingState":
        return TrainingState(
            params=self.params * params,
            gradients=self.gradients * params,
            master=self.master * params,
            moments=self.moments * params,
        )


def training_state(
    *, param: str = "bf16", grad: str = NONE, master: str = NONE, moments: str = "f32"
) -> TrainingState:
    """Bytes per parameter under Adam, which keeps two moments.

    The book counts bf16 weights and f32 moments, no gradient and no master copy: 2 + 8 (ch. 5.1.2).

    >>> training_state().total, training_state(grad="bf16", master="f32").total
    (10.0, 16.0)
    """
    return TrainingState(
        params=dtype_bytes(param),
        gradients=_size(grad),
        master=_size(master),
        moments=2 * _size(moments),
    )


def _size(dtype: str) -> float:
    return 0.0 if dtype == NONE else dtype_bytes(dtype)
