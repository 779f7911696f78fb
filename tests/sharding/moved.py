"""The bytes that the book's table of communication counts (5.2), of a derivation."""

from shardwise.sharding.backward.analyse import PhaseName, analyse
from shardwise.sharding.backward.derive import Derivation
from shardwise.sharding.backward.product import WEIGHT
from shardwise.sharding.steps import group_bytes


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
