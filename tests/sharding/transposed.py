"""The transpose of a communication step: what its derivative moves (book 3.3.2 and 5.4.2).

| forward | the cotangent of its result is | backward |
|---|---|---|
| all_gather over X of dim I | partial sums over X | reduce_scatter over X to I |
| all_gather over X of dim I | the same everywhere | slice over X of I |
| reduce_scatter over X to I | cut by X | all_gather over X of I |
| all_reduce over X | the same everywhere | nothing: every summand has the sum's cotangent |
| all_reduce over X | partial sums over X | all_reduce over X |
| all_to_all over X from I to J | as the result | all_to_all over X from J to I |
| permute | as the result | the permute back |
| slice over X of I | cut by X | all_gather over X of I |

Partial sums arise where the devices along X used their copies for different things.
"""

from dataclasses import replace

from shardwise.sharding.backward.forward import gradient_name
from shardwise.sharding.layout import Layout
from shardwise.sharding.steps import ShardStep, StepKind

_TRANSPOSES: dict[StepKind, StepKind] = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "permute": "permute",
    "slice": "all_gather",
}


def transpose(step: ShardStep, *, partial: bool) -> ShardStep | None:
    """The step that takes the cotangent of a step's result to that of its input.

    `partial`: the cotangent of a gathered or all-reduced result comes as partial sums over the
    step's axes; it says nothing of the other kinds. None where nothing has to be done.

    >>> gather = ShardStep(kind="all_gather", inputs=(Layout.parse("A[I_X]"),),
    ...               output=Layout.parse("A[I]"), axes=("X",), dim="I")
    >>> str(transpose(gather, partial=True)), str(transpose(gather, partial=False))
    ('dA[I_X] = ReduceScatter_X(dA[I]{U_X}, I)', 'dA[I_X] = Slice_X(dA[I])')
    """
    kind = _TRANSPOSES[step.kind]
    after, before = _cotangent(step.output), _cotangent(step.inputs[0])
    if step.kind in ("all_gather", "all_reduce") and partial:
        after = replace(after, unreduced=(*after.unreduced, *step.axes))
    elif step.kind == "all_gather":
        kind = "slice"
    elif step.kind == "all_reduce":
        return None
    dim, to_dim = (step.to_dim, step.dim) if kind == "all_to_all" else (step.dim, "")
    axes = step.axes
    if kind == "permute":
        axes = step.inputs[0].dim(step.dim).axes
    return ShardStep(kind=kind, inputs=(after,), output=before, axes=axes, dim=dim, to_dim=to_dim)


def _cotangent(layout: Layout) -> Layout:
    """The gradient of an array is the same for every summand of a partial sum."""
    return replace(layout, name=gradient_name(layout.name), unreduced=())
