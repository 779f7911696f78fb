"""Tensor and sequence parallelism: where the activations lie between and inside the blocks.

Between the blocks `x[B, T_{context,tensor}, D]` (sequence parallelism) or `x[B, T_context, D]`;
inside, `q[B, T, N_tensor, H]` and `a[B, T, F_tensor]`. The constraints stand where the layouts
change, so that the compiler gathers x over tensor before the matmuls into a block and scatters the
sums after the matmul out of it (Korthikanti et al., arXiv 2205.05198).
"""

from dataclasses import dataclass
from math import prod

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.runtime.parallel.setup import Setup, one_or_all

BETWEEN = ("embedding", "block_input", "attention_out", "mlp_out")
HEADS = ("qkv", "attention")
WIDTH = ("mlp_in", "activation", "logits")


@dataclass(frozen=True, slots=True)
class Stream:
    """The `at` hook: a constraint on each activation that a mesh axis cuts."""

    setup: Setup
    without: tuple[str, ...] = ()

    def __call__(self, name: str, x: jax.Array) -> jax.Array:
        """The activation, laid out as its name says; dims that do not divide are left whole."""
        spec = self._spec(name, x.ndim)
        if spec is None:
            return x
        mesh = self.setup.mesh
        return lax.with_sharding_constraint(x, NamedSharding(mesh, _even(spec, x, mesh)))

    def _spec(self, name: str, dims: int) -> PartitionSpec | None:
        axes = self.setup.axes
        batch = one_or_all(self.setup.batch_axes(self.without))
        time = "context" if "context" in axes else None
        if name in BETWEEN and dims == 3:
            return stream_spec(self.setup, self.without)
        if name == "norm" and dims == 3:
            return PartitionSpec(batch, time, None)
        tensor = "tensor" if "tensor" in axes else None
        if name in HEADS and dims == 4:
            return PartitionSpec(batch, time, tensor, None)
        if name in WIDTH and dims == 3:
            return PartitionSpec(batch, time, tensor)
        return None


def stream_spec(setup: Setup, without: tuple[str, ...] = ()) -> PartitionSpec:
    """How x[B, T, D] lies between blocks."""
    names = ("context", "tensor") if setup.plan.sequence_parallel else ("context",)
    time = tuple(a for a in names if a in setup.axes)
    return PartitionSpec(one_or_all(setup.batch_axes(without)), one_or_all(time), None)


def _even(spec: PartitionSpec, x: jax.Array, mesh: jax.sharding.Mesh) -> PartitionSpec:
    """The spec without the entries that do not divide their dim (KV heads, a cut vocabulary)."""
    kept = []
    for size, entry in zip(x.shape, spec, strict=True):
        names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
        kept.append(entry if size % prod(mesh.shape[a] for a in names) == 0 else None)
    return PartitionSpec(*kept)
