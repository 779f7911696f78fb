"""Where a step goes, planned and compiled, by the same classes.

    products     matrix products but those of attention's core
    attention    its core: a kernel, or loops over tiles with all that is between their products
    elementwise  what is left on the compute stream: norms, activations, casts, copies, stacks
    data         what compute waits for over axes that cut tokens or storage: weights, gradients
    tensor       over tensor; context: keys and values over context; expert: tokens to experts

Of what is compiled compute takes what its stream is busy, the others what it waits for them.
Planned are all seconds of an op, whether something hides them or not.
"""

from collections.abc import Mapping

from shardwise.models.components import CORE
from shardwise.profiler.timeline import HloTimeline
from shardwise.roofline import Estimate
from shardwise.work import Op, tally

CLASSES = ("products", "attention", "elementwise", "data", "tensor", "context", "expert")


def planned_classes(found: Estimate) -> dict[str, float]:
    """Seconds of a priced step by class."""
    return tally((class_of(t.op), float(t.total)) for t in found.ops)


def compiled_classes(found: HloTimeline) -> dict[str, float]:
    """Seconds of a compiled step by class; they add up to it."""
    return tally(
        (class_of(row.op.op), row.per_step if row.op.op.stream == "compute" else row.exposed)
        for row in found.rows
    )


def class_of(op: Op) -> str:
    """The class of an op, planned or compiled."""
    if op.collective is not None:
        return _exchanged(op, op.collective.axes)
    if op.component == CORE or op.op_class == "attention":
        return "attention"
    return "products" if op.op_class == "matmul" else "elementwise"


def _exchanged(op: Op, axes: tuple[str, ...]) -> str:
    if op.component == CORE:
        return "context" if "context" in axes else "tensor"
    if set(axes) <= {"tensor"}:
        return "tensor"
    return "expert" if set(axes) <= {"expert", "tensor"} and op.component not in _STORED else "data"


_STORED = ("parameters", "gradients", "optimizer")


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by class in the order of `CLASSES`."""
    return {name: seconds.get(name, 0.0) for name in CLASSES}
