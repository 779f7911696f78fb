"""What every strategy derives from a plan: how each array lies on the mesh."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeVar, get_args

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import ModelConfig, Parameter
from shardwise.plans.layouts import activation_layout, inner_layout
from shardwise.plans.train import TrainPlan
from shardwise.runtime.init import Tree, tree_of
from shardwise.runtime.sharding import parameter_spec, spec_of

T = TypeVar("T")
TensorMatmul = Literal["plain", "one_way", "both_ways"]
TENSOR_MATMULS: tuple[TensorMatmul, ...] = get_args(TensorMatmul)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A plan, its model and the mesh that it runs on: all of the mesh, or one stage's part.

    `tensor_matmul` says how x is gathered over tensor and the sums scattered: by the compiler, or
    by collective matmuls in one direction of the ring or both. `without` names batch axes that are
    mapped over: arrays inside are those of one place along them.
    """

    plan: TrainPlan
    cfg: ModelConfig
    mesh: jax.sharding.Mesh
    tensor_matmul: TensorMatmul = "plain"
    without: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, int]:
        """Degrees of the axes that cut anything."""
        return {axis: n for axis, n in self.mesh.shape.items() if n > 1}

    def degree(self, axis: str) -> int:
        """Degree of an axis; 1 where the mesh does not name it."""
        return self.mesh.shape.get(axis, 1)

    def size(self, axes: Iterable[str]) -> int:
        """Devices along several axes."""
        return prod(map(self.degree, axes))

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """A spec on this mesh."""
        return NamedSharding(self.mesh, spec)

    def tree(self, leaf: Callable[[Parameter], Any]) -> Tree:
        """The parameter tree of the model with `leaf(row)` in each place."""
        return tree_of(self.cfg, leaf)

    def stored(self, row: Parameter) -> PartitionSpec:
        """How a parameter lies between uses."""
        return self._spec(row, self.plan.storage_axes)

    def used(self, row: Parameter) -> PartitionSpec:
        """How a parameter lies while it is in use: storage gathered, tensor and expert not."""
        return self._spec(row, ())

    def _spec(self, row: Parameter, storage: tuple[str, ...]) -> PartitionSpec:
        return parameter_spec(row, self.axes, storage, self.plan.expert_over_tensor)

    @property
    def explicit_sums(self) -> bool:
        """Whether partial sums of a layer's matmuls are summed in `partial_sums.py`; in rings they
        are the rings', in the passes of a pipeline the compiler's."""
        return bool(self.axes) and self.tensor_matmul == "plain" and self.plan.degree("stage") == 1

    def inner(self, letters: str) -> PartitionSpec:
        """How an array with these dims lies inside a block."""
        return spec_of(inner_layout(letters, self.axes, self.without))

    def activation(self, name: str, shape: tuple[int, ...]) -> PartitionSpec | None:
        """How a named activation lies, None where that is left to the compiler."""
        rings = self.tensor_matmul != "plain"
        layout = activation_layout(name, self.plan, shape, without=self.without, rings=rings)
        return None if layout is None else spec_of(layout)

    @property
    def stream(self) -> PartitionSpec:
        """How x[B, T, D] lies between blocks."""
        layout = activation_layout("block_input", self.plan, without=self.without)
        assert layout is not None
        return spec_of(layout)


def axes_of(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


def one_or_all(names: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """An entry of a PartitionSpec."""
    return names if len(names) > 1 else (names[0] if names else None)
