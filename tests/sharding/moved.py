"""The bytes that the book's table of communication counts (5.2), of a derivation."""

from collections.abc import Mapping
from math import prod

from shardwise.sharding.backward.analyse import PhaseName, analyse
from shardwise.sharding.backward.derive import Derivation
from shardwise.sharding.backward.forward import Forward
from shardwise.sharding.backward.product import WEIGHT
from shardwise.sharding.local import Sizes, local_shape
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.steps import group_bytes

STATE_BYTES: Mapping[str, float] = {"parameter": 2.0, "gradient": 2.0, "optimizer": 8.0}
"""Bytes per element: bf16 parameters and gradients, two f32 moments of Adam (book 5.1.1)."""


def moved_bytes(
    derivation: Derivation, phase: PhaseName, dtype: str = "bf16", *, share: bool = True
) -> float:
    """Bytes that one device's links carry in one phase, over the two-way bandwidth of its axis.

    The sum of V for gathers and reduce-scatters, 2V for all-reduces, V/4 for all-to-alls: the
    unit of the book's table of communication (5.2). With `share`, copies of activations that the
    forward made are kept for the backward instead of gathered again (book 5.1.3, errata 5.1).
    """
    total = 0.0
    for note in analyse(derivation, phase):
        step = note.step
        if step.kind in WEIGHT and not (share and note.made_in):
            dtypes = {step.inputs[0].name: dtype}
            volume = group_bytes(step, derivation.sizes, derivation.mesh, dtypes)
            total += WEIGHT[step.kind] * volume
    return total


def state_bytes(
    source: Forward, sizes: Sizes, mesh: Mesh, widths: Mapping[str, float] = STATE_BYTES
) -> dict[str, float]:
    """Bytes on one device of all parameters, gradients and optimizer state, by kind.

    Partial sums are as large as the array. `widths` gives the bytes per element of each kind.
    """
    totals = dict.fromkeys(widths, 0.0)
    for stored in source.storage.values():
        for kind, width in widths.items():
            totals[kind] += prod(local_shape(getattr(stored, kind), sizes, mesh)) * width
    return totals
