"""One training step in the three styles of ch. 10: what `jit` adds, what types say, what we write.

The step is that of a gated MLP with its residual, data parallel, FSDP, tensor and sequence parallel
at once, as a plan lays them out:

    W_up[D_fsdp, F_tensor]                       AllGather over fsdp  -> W_up[D, F_tensor]
    x[B_{data,fsdp}, T_tensor, D]                AllGather over tensor -> x[B, T, D]
    h[B, T, F_tensor] = act(x W_gate) * (x W_up)
    y[B, T, D]{U_tensor} = h W_down              ReduceScatter over tensor -> y[B, T_tensor, D]

and for the gradients dW_up[D, F_tensor]{U_data,fsdp} a ReduceScatter over fsdp and an AllReduce
over data.

- `jit`: whole arrays; constraints where the layout changes, and the compiler finds the collectives.
  A gradient would be laid out like what it is a gradient of, so W's gather has one of its own.
- explicit sharding: whole arrays whose types hold the layout, partial sums included. JAX derives
  each result's type and asks where it cannot. `reduced` says that a value is the same everywhere
  and its gradient a partial sum: so what is gathered forward is scattered backward.
- `shard_map`: the blocks of one device, and every collective written out. Forward ones have their
  transposes for gradients; a weight that varies over data has a gradient summed over data.

The runtime is written in the first, with islands of the third (attention, experts, collective
matmuls).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.plans.train import TrainPlan, mesh_text
from shardwise.runtime.init import stored_rows
from shardwise.runtime.parallel.fsdp import gathered
from shardwise.runtime.parallel.setup import Setup

Style = Literal["jit", "explicit", "shard_map"]
Weights = Mapping[str, jax.Array]
Loss = Callable[[Weights, jax.Array, jax.Array], jax.Array]
NAMES = ("mlp.gate", "mlp.up", "mlp.down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """How a plan lays out one block: weights between and in use, x between blocks and inside."""

    mesh: jax.sharding.Mesh
    stored: Mapping[str, PartitionSpec]
    used: Mapping[str, PartitionSpec]
    stream: PartitionSpec
    whole: PartitionSpec
    hidden: PartitionSpec

    def at(self, spec: PartitionSpec) -> NamedSharding:
        """A spec on the mesh."""
        return NamedSharding(self.mesh, spec)


def layouts(plan: TrainPlan, cfg: ModelConfig, mesh: jax.sharding.Mesh) -> Layouts:
    """The layouts of the MLP of a model's first group of layers.

    Raises BadRequest unless the mesh has the axes of the three strategies and the MLP a gate.
    """
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh)
    rows = {row.name: row for row in stored_rows(cfg) if row.name in NAMES and row.group == 0}
    if set(setup.axes) != {"data", "fsdp", "tensor"} or not plan.sequence_parallel:
        raise BadRequest(
            f"mesh {mesh_text(plan.mesh)} is none of the three styles' step; cut data, fsdp and "
            "tensor, with sequence_parallel"
        )
    if set(rows) != set(NAMES):
        raise BadRequest(f"the first layers of {cfg.name} have no gated MLP; take a model with one")
    return Layouts(
        mesh=mesh,
        stored={name: PartitionSpec(*setup.stored(row)[1:]) for name, row in rows.items()},
        used={name: PartitionSpec(*setup.used(row)[1:]) for name, row in rows.items()},
        stream=setup.stream,
        whole=setup.inner("BTD"),
        hidden=setup.inner("BTF"),
    )


def mesh_for(style: Style, mesh: jax.sharding.Mesh) -> jax.sharding.Mesh:
    """The mesh with the axis type that a style needs."""
    kind = AxisType.Explicit if style == "explicit" else AxisType.Auto
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, (kind,) * len(mesh.axis_names))


def step(
    style: Style, plan: TrainPlan, cfg: ModelConfig, mesh: jax.sharding.Mesh, rate: float = 0.1
) -> Callable[[Weights, jax.Array, jax.Array], tuple[Weights, jax.Array]]:
    """(weights, x, y) -> (weights after one step of SGD, mean of (block(x) - y)^2), compiled.

    Weights lie as `layouts(...).stored` says, x and y [B, T, D] as `stream`, on `mesh_for(style)`.
    """
    loss = {"jit": jit_loss, "explicit": explicit_loss, "shard_map": shard_map_loss}[style]
    run = loss(layouts(plan, cfg, mesh_for(style, mesh)))

    def descend(w: Weights, x: jax.Array, y: jax.Array) -> tuple[Weights, jax.Array]:
        value, grads = jax.value_and_grad(run)(w, x, y)
        return {name: w[name] - rate * grads[name] for name in w}, value

    return jax.jit(descend)


def jit_loss(at: Layouts) -> Loss:
    """The first style."""

    def gather(w: jax.Array, name: str) -> jax.Array:
        return gathered(w, (at.at(at.used[name]),), (at.at(at.stored[name]),))

    def loss(w: Weights, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        w = {name: gather(w[name], name) for name in w}
        whole_BTD = lax.with_sharding_constraint(x_BTD, at.at(at.whole))
        h_BTF = jax.nn.silu(whole_BTD @ w["mlp.gate"]) * (whole_BTD @ w["mlp.up"])
        h_BTF = lax.with_sharding_constraint(h_BTF, at.at(at.hidden))
        out_BTD = lax.with_sharding_constraint(h_BTF @ w["mlp.down"], at.at(at.stream))
        return jnp.square(x_BTD + out_BTD - y_BTD).mean()

    return loss


def explicit_loss(at: Layouts) -> Loss:
    """The second style."""
    whole = at.at(PartitionSpec(*at.whole, reduced=frozenset({"tensor"})))
    sums = at.at(PartitionSpec(*at.whole, unreduced=frozenset({"tensor"})))

    def gather(w: jax.Array, name: str) -> jax.Array:
        w = jax.reshard(w, at.at(PartitionSpec(*at.stored[name], reduced=frozenset({"data"}))))
        return jax.reshard(
            w, at.at(PartitionSpec(*at.used[name], reduced=frozenset({"data", "fsdp"})))
        )

    def loss(w: Weights, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        w = {name: gather(w[name], name) for name in w}
        whole_BTD = jax.reshard(x_BTD, whole)
        h_BTF = jax.nn.silu(whole_BTD @ w["mlp.gate"]) * (whole_BTD @ w["mlp.up"])
        sums_BTD = jnp.einsum("BTF,FD->BTD", h_BTF, w["mlp.down"], out_sharding=sums)
        out_BTD = jax.reshard(sums_BTD, at.at(at.stream))
        return jnp.square(x_BTD + out_BTD - y_BTD).mean()

    return loss


def shard_map_loss(at: Layouts) -> Loss:
    """The third style."""
    axes = at.mesh.axis_names

    def gather(w: jax.Array, name: str) -> jax.Array:
        w = lax.pcast(w, "data", to="varying")
        return lax.all_gather(w, "fsdp", axis=at.stored[name].index("fsdp"), tiled=True)

    def loss(w: Weights, x_BTD: jax.Array, y_BTD: jax.Array) -> jax.Array:
        w = {name: gather(w[name], name) for name in w}
        whole_BTD = lax.all_gather(x_BTD, "tensor", axis=1, tiled=True)
        h_BTF = jax.nn.silu(whole_BTD @ w["mlp.gate"]) * (whole_BTD @ w["mlp.up"])
        sums_BTD = h_BTF @ w["mlp.down"]
        out_BTD = lax.psum_scatter(sums_BTD, "tensor", scatter_dimension=1, tiled=True)
        return lax.pmean(jnp.square(x_BTD + out_BTD - y_BTD).mean(), axes)

    specs = (dict(at.stored), at.stream, at.stream)
    return jax.shard_map(loss, mesh=at.mesh, in_specs=specs, out_specs=PartitionSpec())
