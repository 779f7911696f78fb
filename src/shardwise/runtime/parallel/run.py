"""From a plan to functions: place parameters, loss and gradients, a whole training step."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from shardwise.models import ModelConfig
from shardwise.plans.software.xla_flags import trainer_flags
from shardwise.plans.train import TrainPlan
from shardwise.runtime.init import initialise as draw
from shardwise.runtime.init import padded_shape, rows_tree, shapes
from shardwise.runtime.parallel import pipeline, stages
from shardwise.runtime.parallel.refusals import check
from shardwise.runtime.parallel.setup import Setup, TensorMatmul
from shardwise.runtime.parallel.stages import StagePipeline, pipeline_of
from shardwise.runtime.parallel.step import mesh_loss_and_grads, shardings
from shardwise.runtime.parallel.update import State, Update, clipping, square_norm
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.sharding import batch_sharding

if TYPE_CHECKING:  # servers have no optimizer
    import optax

Batch = Mapping[str, jax.Array]


def loss_and_grads(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    tensor_matmul: TensorMatmul = "plain",
) -> Callable[[Any, Batch], tuple[jax.Array, Any]]:
    """(params, batch) -> (loss, gradients), of the plan's global batch; see `model.loss`.

    Parameters lie as `place` and `initialise` leave them, gradients as the optimizer's pieces
    (`data.py`). `tensor_matmul` "one_way" or "both_ways" overlaps the exchanges over tensor by
    collective matmuls, "plain" leaves them to the compiler. Raises BadRequest for a choice that
    the runtime does not run, by name.
    """
    check(plan, cfg, tensor_matmul)
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh, tensor_matmul=tensor_matmul)
    if setup.degree("stage") > 1:
        return partial(pipeline.loss_and_grads, pipeline_of(plan, cfg, mesh, tensor_matmul))
    run = jax.jit(mesh_loss_and_grads(setup))
    return lambda params, batch: run(params, place_batch(batch, mesh))


def place_batch(batch: Batch, mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
    """The batch on its devices: sequences over the batch axes, tokens over `context`."""
    return jax.device_put(dict(batch), batch_sharding(mesh))


def place(plan: TrainPlan, cfg: ModelConfig, mesh: jax.sharding.Mesh, params: Any) -> Any:
    """Whole parameters (`runtime.initialise` without shardings, a loaded checkpoint) -> the plan's
    layout: padded where a dim does not divide, and on their devices."""
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh)
    if setup.degree("stage") > 1:
        return stages.place(pipeline_of(plan, cfg, mesh), params)

    def put(row: Any, sharding: Any, w: jax.Array) -> jax.Array:
        shape = padded_shape(row, sharding)
        padded = jnp.pad(w, [(0, n - m) for n, m in zip(shape, w.shape, strict=True)])
        return jax.device_put(padded, sharding)

    return jax.tree.map(put, rows_tree(cfg), shardings(setup), params)


def initialise(plan: TrainPlan, cfg: ModelConfig, mesh: jax.sharding.Mesh, key: jax.Array) -> Any:
    """Random parameters in the plan's layout, made where they stay."""
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh)
    if setup.degree("stage") > 1:
        return place(plan, cfg, mesh, draw(cfg, key, dtype_of(plan.dtypes.param)))
    return draw(cfg, key, dtype_of(plan.dtypes.param), shardings(setup))


def whole(plan: TrainPlan, cfg: ModelConfig, mesh: jax.sharding.Mesh, params: Any) -> Any:
    """The inverse of `place` for parameters or gradients: one tree, the padding cut off."""
    if plan.degree("stage") > 1:
        return stages.whole(pipeline_of(plan, cfg, mesh), params)
    return jax.tree.map(stages.cut, rows_tree(cfg), params)


def start(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: "optax.GradientTransformation",
    params: Any,
) -> State:
    """The state of training before the first step, of parameters laid out by `place`."""
    check(plan, cfg)
    if plan.degree("stage") == 1:
        return _update(plan, cfg, mesh, optimizer).start(params)
    updates = _updates(pipeline_of(plan, cfg, mesh), optimizer)
    states = [update.start(p) for update, p in zip(updates, params, strict=True)]
    return {name: tuple(s[name] for s in states) for name in states[0]}


def unpadded(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: "optax.GradientTransformation",
) -> State:
    """The shapes of the state of `start` where no dim is padded to divide."""

    def made(params: Any) -> State:
        if plan.degree("stage") == 1:
            return {"params": params, "optimizer": optimizer.init(params)}
        pipe = pipeline_of(plan, cfg, mesh)
        parts = tuple(pipe.part(r, params) for r in range(pipe.schedule.stages))
        return {"params": parts, "optimizer": tuple(map(optimizer.init, parts))}

    return jax.eval_shape(made, shapes(cfg, dtype_of(plan.dtypes.param)))


def train_step(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: "optax.GradientTransformation",
    clip: float | None = None,
    tensor_matmul: TensorMatmul = "plain",
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    """(state, batch) -> (state, {"loss", "grad_norm"}); the state given is used up.

    The optimizer must work tensor by tensor (`update.py`); gradients are first clipped to the
    global norm `clip`. `tensor_matmul` and errors as in `loss_and_grads`.
    """
    check(plan, cfg, tensor_matmul)
    if plan.degree("stage") > 1:
        return _pipeline_step(pipeline_of(plan, cfg, mesh, tensor_matmul), optimizer, clip)
    compiled = step_program(plan, cfg, mesh, optimizer, clip, tensor_matmul)
    return lambda state, batch: compiled(state, place_batch(batch, mesh))


def step_program(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: "optax.GradientTransformation",
    clip: float | None = None,
    tensor_matmul: TensorMatmul = "plain",
    flags: Mapping[str, str] | None = None,
) -> Any:
    """The step of a plan without stages as one jitted function, the state donated: to be run, or to
    be lowered for devices that are not here; `flags` are the compiler's in place of those that the
    trainer has on such devices. Raises BadRequest as `loss_and_grads`."""
    check(plan, cfg, tensor_matmul)
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh, tensor_matmul=tensor_matmul)
    gradient = mesh_loss_and_grads(setup)
    update = _update(plan, cfg, mesh, optimizer)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        loss, grads = gradient(state["params"], batch)
        norm = jnp.sqrt(square_norm(grads))
        return update.step(state, grads, clipping(norm, clip)), {"loss": loss, "grad_norm": norm}

    if flags is None:
        flags = trainer_flags(mesh.devices.flat[0].device_kind)
    return jax.jit(step, donate_argnums=0, compiler_options=dict(flags) or None)


def _pipeline_step(
    pipe: StagePipeline, optimizer: "optax.GradientTransformation", clip: float | None
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    updates = _updates(pipe, optimizer)
    steps = [jax.jit(update.step, donate_argnums=0) for update in updates]
    norms = [jax.jit(square_norm) for _ in updates]

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        loss, grads = pipeline.loss_and_grads(pipe, state["params"], batch)
        owned = stages.first_copies(pipe, grads)
        squares = [f(g) for f, g in zip(norms, owned, strict=True)]
        norm = jnp.sqrt(sum(jax.device_put(s, squares[0].sharding) for s in squares))
        scale = clipping(norm, clip)
        states = []
        for rank, (run, update) in enumerate(zip(steps, updates, strict=True)):
            mine = {name: part[rank] for name, part in state.items()}
            here = jax.device_put(scale, update.setup.sharding(PartitionSpec()))
            states.append(run(mine, grads[rank], here))
        new = {name: tuple(s[name] for s in states) for name in states[0]}
        return new, {"loss": loss, "grad_norm": norm}

    return step


def _update(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    optimizer: "optax.GradientTransformation",
) -> Update:
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh)
    return Update(setup=setup, rows=rows_tree(cfg), optimizer=optimizer)


def _updates(pipe: StagePipeline, optimizer: "optax.GradientTransformation") -> list[Update]:
    ranks = range(pipe.schedule.stages)
    return [Update(setup=pipe.setup(r), rows=pipe.rows(r), optimizer=optimizer) for r in ranks]
