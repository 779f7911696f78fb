"""From a plan's layouts to JAX: the mesh, shardings of parameters and batches.

`plans.layouts` says which axes cut which dim; this file only translates. Under `jit` the compiler
then adds the collectives (DP, FSDP and TP in the first of ch. 10's three styles).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, Parameter
from shardwise.plans.laws import uneven
from shardwise.plans.layouts import UNEVEN, inner_layout, parameter_layout
from shardwise.plans.train import STORAGE_AXES, TrainPlan, mesh_text
from shardwise.runtime.init import Tree, tree_of
from shardwise.sharding import Layout


def mesh_of(
    axes: Mapping[str, int] | TrainPlan, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """A mesh with the plan's axes, outermost first, over the first devices (axis type Auto).

    Raises BadRequest where there are fewer devices than the axes multiply to.
    """
    degrees = axes.mesh if isinstance(axes, TrainPlan) else axes
    devices = jax.devices() if devices is None else devices
    need = devices_of(degrees, len(devices))
    array = np.array(devices[:need], dtype=object).reshape(tuple(degrees.values()))
    return jax.sharding.Mesh(array, tuple(degrees))


def devices_of(degrees: Mapping[str, int], here: int) -> int:
    """The devices of a mesh. Raises BadRequest where fewer are here."""
    need = prod(degrees.values())
    if need > here:
        raise BadRequest(
            f"mesh {mesh_text(degrees)} needs {need} devices and there are {here}; plan for "
            "these, or set jax_num_cpu_devices for virtual ones"
        )
    return need


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

    JAX arrays are cut evenly: F and V are padded (`init.padded_shape`). Raises BadRequest where an
    axis divides none of what it must.
    """
    layout = parameter_layout(row, axes, storage_axes, expert_over_tensor)
    for dim, (letter, size) in zip(layout.dims, row.dims, strict=True):
        pads = UNEVEN.get(letter) == "pad" and dim.axes == ("tensor",)
        degree = prod(axes.get(axis, 1) for axis in dim.axes)
        if size % degree and not pads:
            problem = uneven(letter, size, " x ".join(dim.axes), degree)
            raise BadRequest(f"parameter '{row.name}': {problem}")
    return spec_of(layout) if row.group is None else PartitionSpec(None, *spec_of(layout))


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
    return NamedSharding(mesh, spec_of(inner_layout("BT", mesh.shape)))
