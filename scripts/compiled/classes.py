"""Where a step goes, planned and compiled, by the same classes: from each the constants of a stack.

    products     matrix products, but those of attention's core and of routed experts
    experts      those of routed experts
    kernel       the core by a kernel; tiles: by a loop over tiles, all that is between its products
    elementwise  what else the compute stream does: norms, activations, casts, copies, stacks, and
                 what turns the inputs of a kernel round
    dispatch     what sorts tokens to routed experts, puts them in order and back, and weighs them
    optimizer    the update
    gathers      weights on their way to their products; what else is sent over axes of storage
    renewed      weights on their way to replicas, after an update that each did a part of
    sums         gradients on their way back
    tensor       gathers of activations over tensor; exchanges: their sums
    context      keys and values; expert: tokens

Compiled, compute takes what its stream is busy and a transfer what compute waits for it, so that
the classes add up to the step. Planned are all seconds of an op, with what hides them.
"""

from collections.abc import Mapping

from shardwise.models.components import CORE
from shardwise.plans.layouts import DATA_AXES
from shardwise.profiler.timeline import HloTimeline
from shardwise.roofline import Estimate
from shardwise.roofline.price import ROUTED, SUMS, over_tensor
from shardwise.work import Op, tally

CLASSES = (
    *("products", "experts", "kernel", "tiles", "elementwise", "dispatch", "optimizer"),
    *("gathers", "renewed", "sums", "tensor", "exchanges", "context", "expert"),
)


def planned_classes(found: Estimate) -> dict[str, float]:
    """Seconds of a priced step by class, in the order of `CLASSES`."""
    return _all((_class(t.op, t.op.tiled), float(t.total)) for t in found.ops)


def compiled_classes(found: HloTimeline, tiled: bool) -> dict[str, float]:
    """Seconds of a compiled step by class; `tiled` says how the plan's attention runs."""
    return _all(
        (
            _class(row.op.op, tiled),
            row.per_step if row.op.op.stream == "compute" else row.exposed,
        )
        for row in found.rows
    )


def _all(items) -> dict[str, float]:
    seconds: Mapping[str, float] = tally(items)
    return {name: seconds.get(name, 0.0) for name in CLASSES}


def _class(op: Op, tiled: bool) -> str:
    if op.collective is not None:
        return _exchange(op)
    if op.op_class == "attention" or (tiled and op.component == CORE):
        return "tiles" if tiled else "kernel"
    if op.component == "optimizer":
        return "optimizer"
    if op.op_class == "matmul":
        return "experts" if op.component == ROUTED else "products"
    return "dispatch" if op.component == ROUTED else "elementwise"


def _exchange(op: Op) -> str:
    assert op.collective is not None
    axes, adds = op.collective.axes, op.collective.kind in SUMS
    if op.component == CORE and "context" in axes:
        return "context"
    if over_tensor(op) and set(axes) <= {"tensor", "context"}:
        return "exchanges" if adds else "tensor"
    if axes == ("expert",) and not adds:
        return "expert"
    if adds:
        return "sums"
    return "renewed" if set(axes) <= set(DATA_AXES) else "gathers"
