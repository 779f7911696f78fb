"""Plan -> how the mesh axes cut every parameter and activation, said once.

The planner divides bytes by it, the runtime turns it into a PartitionSpec.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from shardwise.models.parameters import Parameter
from shardwise.plans.train import STORAGE_AXES
from shardwise.sharding import Dim, Layout
from shardwise.work import Quantity

UNEVEN: Mapping[str, Literal["pad", "replicate", "refuse"]] = {
    "F": "pad",
    "V": "pad",
    "K": "replicate",
    "N": "refuse",
    "E": "refuse",
}
"""What happens to a dim that its axis does not divide: padded up to the next multiple, replicated
(several devices keep the same KV head), or the plan is refused."""

DATA_AXES = ("replica", "data")
"""Axes that always replicate parameters."""

TENSOR_LETTERS = "FNKV"
"""Dims that the tensor axis cuts: d_ff, query heads, KV heads, vocabulary (ch. 5.1.3)."""


def is_expert(parameter: Parameter) -> bool:
    """Whether the parameter is a stack of routed experts, one matrix each."""
    return "E" in parameter.batch


def tensor_letter(parameter: Parameter) -> str:
    """The letter that the tensor axis cuts, or "" where the parameter is replicated over it."""
    letters = [letter for letter, _ in parameter.dims]
    return next((letter for letter in TENSOR_LETTERS if letter in letters), "")


def gather_axes(
    parameter: Parameter, storage_axes: tuple[str, ...] = STORAGE_AXES
) -> tuple[str, ...]:
    """Mesh axes over which the stored pieces are gathered before use."""
    stored = (a for a in STORAGE_AXES if a in storage_axes)
    return tuple(a for a in stored if a != "expert" or not is_expert(parameter))


def replica_axes(
    parameter: Parameter, storage_axes: tuple[str, ...] = STORAGE_AXES
) -> tuple[str, ...]:
    """Mesh axes whose devices hold the same piece and see tokens of their own: gradients are summed
    over them. Experts lie apart over `expert`."""
    apart = ("expert",) if is_expert(parameter) else ()
    return (*DATA_AXES, *(a for a in STORAGE_AXES if a not in (*storage_axes, *apart)))


def local_size(size: int, degree: Quantity) -> Quantity:
    """Elements of a dim on one device: padded up where the degree does not divide it."""
    return np.ceil(size / degree)


def tensor_share(parameter: Parameter, tensor: Quantity, whole_heads: bool = False) -> Quantity:
    """Share of a parameter that one device of the tensor axis computes with (1/tensor if even).

    With `whole_heads` KV heads that tensor does not divide are all on every device, as JAX arrays
    lie; else a device has only those that its query heads read.
    """
    letter = tensor_letter(parameter)
    if not letter:
        return 1.0
    size = next(n for name, n in parameter.dims if name == letter)
    share = local_size(size, tensor) / size
    if whole_heads and UNEVEN.get(letter) == "replicate":
        return np.where(np.mod(size, tensor) == 0, share, 1.0)
    return share


def compute_share(
    parameter: Parameter,
    degrees: Mapping[str, Quantity],
    expert_over_tensor: bool = False,
    whole_heads: bool = False,
) -> Quantity:
    """Share of a parameter on one device while it is in use: cut by tensor, experts by expert; with
    `expert_over_tensor` experts lie apart over both and are not cut themselves."""
    tensor = degrees.get("tensor", 1)
    if not is_expert(parameter):
        return tensor_share(parameter, tensor, whole_heads)
    apart = 1.0 / tensor if expert_over_tensor else tensor_share(parameter, tensor)
    return apart / degrees.get("expert", 1)


def stored_share(
    parameter: Parameter,
    degrees: Mapping[str, Quantity],
    storage_axes: tuple[str, ...] = STORAGE_AXES,
    expert_over_tensor: bool = False,
    whole_heads: bool = False,
) -> Quantity:
    """Share of a parameter that one device stores between uses."""
    share = compute_share(parameter, degrees, expert_over_tensor, whole_heads)
    for axis in gather_axes(parameter, storage_axes):
        share = share / degrees.get(axis, 1)
    return share


def parameter_layout(
    parameter: Parameter,
    mesh: Mapping[str, int],
    storage_axes: tuple[str, ...] = STORAGE_AXES,
    expert_over_tensor: bool = False,
) -> Layout:
    """The Layout of a stored parameter; fsdp cuts D, or the first dim where there is no D."""
    letters = [letter for letter, _ in parameter.dims]
    stored = letters.index("D") if "D" in letters else 0
    dims = []
    for i, (letter, _) in enumerate(parameter.dims):
        axes: tuple[str, ...] = ()
        if letter == "E" and is_expert(parameter):
            axes = ("expert", "tensor") if expert_over_tensor else ("expert",)
        elif letter == tensor_letter(parameter) and not (
            expert_over_tensor and is_expert(parameter)
        ):
            axes = ("tensor",)
        if i == stored:
            axes = (*axes, *gather_axes(parameter, storage_axes))
        dims.append((letter, tuple(a for a in axes if mesh.get(a, 1) > 1)))
    return _layout(parameter.name.rsplit(".", 1)[-1], dims)


def activation_layout(mesh: Mapping[str, int], sequence_parallel: bool) -> Layout:
    """The Layout of the activations between blocks, x[B, T, D]."""
    batch = ("replica", "data", "fsdp", "expert")
    time = ("context", "tensor") if sequence_parallel else ("context",)
    cut = [("B", batch), ("T", time), ("D", ())]
    return _layout("x", [(d, tuple(a for a in axes if mesh.get(a, 1) > 1)) for d, axes in cut])


def uneven_error(letter: str, size: int, axis: str, degree: int) -> str | None:
    """Why a degree is refused for a dim, or None where the table pads or replicates."""
    if size % degree == 0 or UNEVEN.get(letter) != "refuse":
        return None
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    near = [max(d for d in divisors if d < degree), *[d for d in divisors if d > degree][:1]]
    return (
        f"mesh axis '{axis}' of {degree} does not divide {letter}={size}; the nearest that do: "
        + " or ".join(map(str, near))
    )


def _layout(name: str, dims: list[tuple[str, tuple[str, ...]]]) -> Layout:
    return Layout(name=name, dims=tuple(Dim(d, a) for d, a in dims))
