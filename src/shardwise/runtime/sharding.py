"""From a plan's layouts to JAX: the mesh, shardings of parameters and batches, activation hooks.

`plans.layouts` says which axes cut which dim; this file only translates. Under `jit` the compiler
then adds the collectives (DP, FSDP and TP in the first of ch. 10's three styles).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, Parameter
from shardwise.plans.layouts import UNEVEN, activation_layout, parameter_layout
from shardwise.plans.train import STORAGE_AXES, TrainPlan, mesh_text
from shardwise.runtime.init import Tree, padded_shape, rows_tree, tree_of
from shardwise.sharding import Dim, Layout

BATCH_AXES = ("replica", "data", "fsdp", "expert")
"""Axes that cut the batch."""


def mesh_of(
    axes: Mapping[str, int] | TrainPlan, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """A mesh with the plan's axes, outermost first, over the first devices (axis type Auto).

    Raises BadRequest where there are fewer devices than the axes multiply to.
    """
    degrees = axes.mesh if isinstance(axes, TrainPlan) else axes
    devices = jax.devices() if devices is None else devices
    need = prod(degrees.values())
    if need > len(devices):
        raise BadRequest(
            f"mesh {mesh_text(degrees)} needs {need} devices and there are {len(devices)}; "
            "plan for what is here, or set jax_num_cpu_devices for virtual ones"
        )
    array = np.array(devices[:need], dtype=object).reshape(tuple(degrees.values()))
    return jax.sharding.Mesh(array, tuple(degrees))


def platform_of(mesh: jax.sharding.Mesh) -> str:
    """cpu, gpu or tpu: what the devices of a mesh are, here or of a topology."""
    platform = mesh.devices.flat[0].platform
    return "gpu" if platform == "cuda" else platform


def spec_of(layout: Layout) -> PartitionSpec:
    """The PartitionSpec of a Layout; an unreduced one has none that is a value to store."""
    if layout.unreduced:
        raise BadRequest(f"'{layout}' holds partial sums; reduce it before it is placed")
    return PartitionSpec(*layout.spec())


def parameter_spec(
    row: Parameter,
    axes: Mapping[str, int],
    storage_axes: tuple[str, ...] = STORAGE_AXES,
    expert_over_tensor: bool = False,
) -> PartitionSpec:
    """How the array of a row is cut, by `plans.layouts`; its dim of stacked layers is whole.

    JAX arrays are cut evenly: F and V are padded (`init.padded_shape`). Where the storage axes do
    not divide the dim that the layout cuts (biases have no D), they cut the first dim that they do
    divide, else none: those few bytes are replicated. KV heads that `tensor` does not divide are
    replicated over it. Raises BadRequest where an axis divides none of what it must.
    """
    layout = parameter_layout(row, axes, storage_axes, expert_over_tensor)
    sizes = dict(row.dims)
    cut = {dim.name: dim.axes for dim in layout.dims}
    stored = [(d, a) for d, names in cut.items() for a in names if a in STORAGE_AXES]
    if row.batch:
        stored = [(d, a) for d, a in stored if d not in row.batch or a != "expert"]
    moved = tuple(a for _, a in stored)
    fixed = {d: tuple(a for a in names if (d, a) not in stored) for d, names in cut.items()}
    for letter, names in fixed.items():
        if sizes[letter] % _degree(axes, names) == 0 or UNEVEN.get(letter) == "pad":
            continue
        if UNEVEN.get(letter) != "replicate":
            raise _uneven(row, letter, names, axes)
        fixed[letter] = ()
    home = stored[0][0] if stored else ""
    for letter in (home, *(d for d in fixed if d != home)) if moved else ():
        if sizes[letter] % _degree(axes, fixed[letter] + moved) == 0:
            fixed[letter] += moved
            break
    else:
        if moved and row.role == "matmul":
            raise _uneven(row, home, moved, axes)
    entries = spec_of(replace(layout, dims=tuple(Dim(d, names) for d, names in fixed.items())))
    return entries if row.group is None else PartitionSpec(None, *entries)


def _degree(axes: Mapping[str, int], names: tuple[str, ...]) -> int:
    return prod(axes.get(axis, 1) for axis in names)


def _uneven(
    row: Parameter, letter: str, names: tuple[str, ...], axes: Mapping[str, int]
) -> BadRequest:
    return BadRequest(
        f"parameter '{row.name}': {letter}={dict(row.dims)[letter]} does not divide by "
        f"{' x '.join(names)}={_degree(axes, names)}; use degrees that do"
    )


def parameter_specs(
    cfg: ModelConfig, axes: Mapping[str, int], storage_axes: tuple[str, ...] = STORAGE_AXES
) -> Tree:
    """The tree of PartitionSpecs of a model's parameters (and buffers)."""
    return tree_of(cfg, lambda row: parameter_spec(row, axes, storage_axes))


def parameter_shardings(
    cfg: ModelConfig, mesh: jax.sharding.Mesh, storage_axes: tuple[str, ...] = STORAGE_AXES
) -> Tree:
    """The tree of NamedShardings of a model's parameters on a mesh."""
    axes = dict(mesh.shape)
    return tree_of(cfg, lambda row: NamedSharding(mesh, parameter_spec(row, axes, storage_axes)))


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Tokens [B, T]: the batch cut by the axes that carry data, the sequence by `context`."""
    batch = tuple(axis for axis in BATCH_AXES if axis in mesh.shape)
    time = "context" if "context" in mesh.shape else None
    return NamedSharding(mesh, PartitionSpec(batch or None, time))


def bytes_per_device(tree: Any) -> int:
    """Bytes of a tree of arrays on the first device."""
    total = 0
    for array in jax.tree.leaves(tree):
        total += int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize
    return total


def placed_shapes(cfg: ModelConfig, mesh: jax.sharding.Mesh, dtype: Any) -> Tree:
    """`jax.ShapeDtypeStruct` of every parameter with its sharding, for ahead-of-time compiles."""
    shardings = parameter_shardings(cfg, mesh)
    return jax.tree.map(
        lambda row, sharding: jax.ShapeDtypeStruct(
            padded_shape(row, sharding), dtype, sharding=sharding
        ),
        rows_tree(cfg),
        shardings,
    )


@dataclass(frozen=True, slots=True)
class Constrain:
    """The `at` hook of a plan under `jit`: activations between blocks lie as the plan says.

    A value with equality, so that two equal plans share one compiled program.
    """

    mesh: jax.sharding.Mesh
    sequence_parallel: bool = True

    def __call__(self, name: str, x: jax.Array) -> jax.Array:
        """Constrain the stream [B, T, D] at the block's input and after the embedding."""
        if name not in ("block_input", "embedding", "attention_out", "mlp_out"):
            return x
        layout = activation_layout(dict(self.mesh.shape), self.sequence_parallel)
        cut = [prod(self.mesh.shape[a] for a in dim.axes) for dim in layout.dims]
        if any(size % degree for size, degree in zip(x.shape, cut, strict=True)):
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec_of(layout)))


def constrain(mesh: jax.sharding.Mesh, *, sequence_parallel: bool) -> Callable[..., jax.Array]:
    """The hook for `Options.at` that keeps the stream laid out by `plans.layouts`."""
    return Constrain(mesh, sequence_parallel)
