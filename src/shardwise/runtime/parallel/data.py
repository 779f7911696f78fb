"""Data parallelism and ZeRO: replicated parameters whose gradients are summed.

`dW[D, F]{U_data}` becomes `dW[D, F]` by an AllReduce (ZeRO-0), or `dW[D_data, F]` by a
ReduceScatter where the optimizer keeps pieces only (ZeRO-1, once per step; ZeRO-2, after every
microbatch, so that the whole gradient is never held); the new parameters are then gathered.
Axes that replicate: `replica` (hybrid: across slices), `data`, and those of `expert` and `context`
that are no storage axes.
"""

from math import prod

from jax.sharding import PartitionSpec

from shardwise.models import LatentAttention, Parameter
from shardwise.plans.layouts import DATA_AXES, replica_axes, tensor_letter
from shardwise.runtime.init import PADDED, stacked_shape
from shardwise.runtime.parallel.setup import Setup, axes_of, one_or_all

OUT = "attention.o"


def optimizer_spec(row: Parameter, setup: Setup) -> PartitionSpec:
    """How the optimizer state of a parameter lies, and its gradient when it is summed: as stored,
    and under ZeRO-1 and 2 cut further over its replicas along the first dim that they divide, if
    there is one."""
    spec = setup.stored(row)
    copies = tuple(a for a in replica_axes(row, setup.plan.storage_axes) if a in setup.axes)
    if setup.plan.zero == 0 or not copies:
        return spec
    shape, cut = stacked_shape(row), [axes_of(entry) for entry in spec]
    first = 0 if row.group is None else 1  # a stack is not cut between its layers
    for i in range(first, len(shape)):
        if shape[i] % prod(setup.degree(a) for a in (*cut[i], *copies)) == 0:
            cut[i] = (*cut[i], *copies)
            return PartitionSpec(*map(one_or_all, cut))
    return spec


def running_spec(row: Parameter, setup: Setup) -> PartitionSpec:
    """How the sum of gradients over microbatches lies: in pieces under ZeRO-2 alone."""
    return optimizer_spec(row, setup) if setup.plan.zero == 2 else setup.stored(row)


def gradient_spec(row: Parameter, setup: Setup) -> PartitionSpec:
    """How the gradient of a parameter lies when a microbatch has made it."""
    spec = optimizer_spec if setup.plan.microbatches == 1 else running_spec
    return spec(row, setup)


def is_scattered(row: Parameter, setup: Setup) -> bool:
    """Whether the gradient of a parameter is scattered where it is made (`partial_sums.py`): the
    weights into and out of attention and dense MLPs, where tensor divides them."""
    if not setup.explicit_sums or row.group is None or row.role != "matmul" or row.batch:
        return False
    latent = isinstance(setup.cfg.groups[row.group].mixer, LatentAttention)
    if row.component == "router" or (latent and row.component == "attention" and row.name != OUT):
        return False
    letter, degree = tensor_letter(row), setup.degree("tensor")
    return degree == 1 or letter in PADDED or bool(letter and dict(row.dims)[letter] % degree == 0)


def deferred_axes(setup: Setup) -> tuple[str, ...]:
    """Axes over which gradients are summed once per step and not once per microbatch. None with
    ragged experts: `lax.ragged_dot` cannot be mapped yet (JAX 0.10)."""
    ragged = setup.plan.expert_dispatch == "ragged"
    mixed = setup.cfg.has_experts
    if setup.plan.microbatches == 1 or setup.plan.zero == 2 or (ragged and mixed):
        return ()
    return tuple(a for a in DATA_AXES if a in setup.axes)
