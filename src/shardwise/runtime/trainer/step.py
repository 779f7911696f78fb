"""One training step of a plan: the place where strategies join the trainer.

`program` is what the loop asks for: how the state is laid out, how it begins, and the compiled
step. The step here is the plain one, `jit` with shardings (book ch. 10's first style).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.plans import TrainPlan
from shardwise.runtime.attention.best import best_attention
from shardwise.runtime.attention.dense import dense_attention
from shardwise.runtime.init import initialise
from shardwise.runtime.model import cross_entropy, forward
from shardwise.runtime.options import Options
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.sharding import batch_sharding, constrain, parameter_shardings
from shardwise.runtime.trainer.optimizer import apply_updates

State = dict[str, Any]
Step = Callable[[State, dict[str, jax.Array]], tuple[State, dict[str, jax.Array]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`init(key)` makes the state {"params", "optimizer"}, `step` takes a state (donated) and a
    batch and gives the next and the metrics loss and grad_norm. `shapes` is the state as
    `jax.ShapeDtypeStruct` with shardings, `batch` the sharding of each array of a batch."""

    init: Callable[[jax.Array], State]
    step: Step
    shapes: State
    batch: jax.sharding.Sharding


def program(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: optax.GradientTransformation,
) -> Program:
    """The step of a plan on a mesh. Raises BadRequest for a choice that cannot be run."""
    check_runs(plan)
    options = options_of(plan, mesh)
    shardings = parameter_shardings(cfg, mesh)
    param = dtype_of(plan.dtypes.param)

    def begin(key: jax.Array) -> State:
        params = initialise(cfg, key, param, shardings)
        return {"params": params, "optimizer": optimizer.init(params)}

    def step(state: State, batch: dict[str, jax.Array]) -> tuple[State, dict[str, jax.Array]]:
        params = state["params"]
        loss, grads = _gradients(params, batch, plan, cfg, options)
        norm = optax.global_norm(jax.tree.map(lambda g: g.astype(jnp.float32), grads))
        updates, inner = optimizer.update(grads, state["optimizer"], params)
        after = {"params": apply_updates(params, updates), "optimizer": inner}
        return after, {"loss": loss, "grad_norm": norm}

    made = jax.eval_shape(begin, jax.random.key(0))
    laid = _laid_out(made, shardings, mesh)
    shapes = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), made, laid
    )
    return Program(
        init=jax.jit(begin, out_shardings=laid),
        step=jax.jit(step, donate_argnums=0, out_shardings=(laid, None)),
        shapes=shapes,
        batch=batch_sharding(mesh),
    )


def check_runs(plan: TrainPlan) -> None:
    """Raise BadRequest for what this step does not do."""
    refused = {
        "mesh axis 'stage'": plan.degree("stage") > 1,
        "lora_rank": plan.lora_rank > 0,
        "frozen": bool(plan.frozen),
        "mtp_layers": plan.mtp_layers > 0,
        "offload_optimizer": plan.offload_optimizer,
    }
    for name, asked in refused.items():
        if asked:
            raise BadRequest(f"{name} of this plan is not run by the trainer; plan without it")


def options_of(plan: TrainPlan, mesh: jax.sharding.Mesh) -> Options:
    """How the plan runs the model."""
    return Options(
        compute=plan.dtypes.compute,
        remat=plan.remat,
        remat_kinds=tuple(plan.remat_kinds.items()),
        experts=plan.expert_dispatch,
        kernel=best_attention if plan.attention_kernel == "flash" else dense_attention,
        at=constrain(mesh, sequence_parallel=plan.sequence_parallel),
    )


def _gradients(
    params: Any,
    batch: dict[str, jax.Array],
    plan: TrainPlan,
    cfg: ModelConfig,
    options: Options,
) -> tuple[jax.Array, Any]:
    """Mean loss over the tokens of the whole batch and its gradient, microbatch by microbatch.

    Each microbatch contributes its sum over the count of all, so their number changes nothing but
    the rounding.
    """
    kind, count = dtype_of(plan.dtypes.grad), batch["weights"].sum()

    def part(params: Any, rows: dict[str, jax.Array]) -> jax.Array:
        logits_BTV = forward(
            params,
            rows["tokens"],
            cfg,
            options,
            positions_BT=rows["positions"],
            segments_BT=rows["segments"],
        )
        total, _ = cross_entropy(logits_BTV, rows["targets"], rows["weights"])
        return total / count.astype(total.dtype)

    def grad(rows: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        loss, grads = jax.value_and_grad(part)(params, rows)
        return loss, jax.tree.map(lambda g: g.astype(kind), grads)

    if plan.microbatches == 1:
        return grad(batch)

    def add(so_far: Any, rows: dict[str, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, so_far, grad(rows)), None

    first, rest = _cut(batch, plan.microbatches)
    total, _ = jax.lax.scan(add, grad(first), rest)
    return total


def _cut(batch: dict[str, jax.Array], parts: int) -> tuple[Any, Any]:
    """The first microbatch and the others; each takes every `parts`-th row, so that a device keeps
    the rows that it has."""
    cut = {
        name: x.reshape(x.shape[0] // parts, parts, -1).swapaxes(0, 1) for name, x in batch.items()
    }
    return {n: x[0] for n, x in cut.items()}, {n: x[1:] for n, x in cut.items()}


def _laid_out(made: State, shardings: Any, mesh: jax.sharding.Mesh) -> State:
    """Shardings of the state: what looks like a parameter lies like it, the rest is replicated."""
    whole = NamedSharding(mesh, PartitionSpec())
    paths = jax.tree_util.tree_leaves_with_path(made["params"])
    like = {
        tuple(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(paths, jax.tree.leaves(shardings), strict=True)
    }

    def one(path: tuple[Any, ...], leaf: Any) -> jax.sharding.Sharding:
        for start in range(len(path)):
            shape, sharding = like.get(tuple(path[start:]), (None, whole))
            if shape == leaf.shape:
                return sharding
        return whole

    return jax.tree_util.tree_map_with_path(one, made)
