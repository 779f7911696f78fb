"""Whole steps with Adam follow one device to 1e-4: sharded state, clipping, master copies."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.equivalence import cases

from shardwise.runtime import Options, loss, mesh_of
from shardwise.runtime.parallel import place, start, train_step

CLIP, ADAM = 0.5, optax.adam(1e-2)


def alone(name):
    """Losses of three steps of optax on one device."""
    cfg = cases.config(name)
    params = jax.tree.map(jnp.asarray, cases.start(name, "float32"))
    batch = {k: jnp.asarray(v) for k, v in cases.batch_of().items()}
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), ADAM)

    @jax.jit
    @jax.numpy_dtype_promotion("standard")
    def step(params, state):
        options = Options(experts="ragged")
        value, grads = jax.value_and_grad(partial(loss, cfg=cfg, options=options))(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(grads)

    state, found = optimizer.init(params), []
    for _ in range(cases.STEPS):
        params, state, value, norm = step(params, state)
        found.append((float(value), float(norm)))
    return found


@cases.combinations(
    ("llama", {"data": 4}, {"zero": 2, "microbatches": 2}),
    slow=[("gemma2", {"stage": 2, "data": 2}, {"microbatches": 2, "remat": "block"})],
    long=[
        ("llama", {"data": 2, "fsdp": 2, "tensor": 2}, {"zero": 1, "microbatches": 2}),
        ("mixtral", {"data": 2, "expert": 2}, {"expert_dispatch": "ragged", "remat": "block"}),
    ],
)
def test_adam_follows_one_device(case):
    name, mesh_axes, choices = case
    plan, cfg = cases.plan_of(name, mesh_axes, **choices), cases.config(name)
    mesh = mesh_of(plan)
    params = place(plan, cfg, mesh, cases.start(name, "float32"))
    state, step = start(plan, cfg, mesh, ADAM, params), train_step(plan, cfg, mesh, ADAM, CLIP)
    found = []
    for _ in range(cases.STEPS):
        state, metrics = step(state, cases.batch_of())
        found.append((float(metrics["loss"]), float(metrics["grad_norm"])))
    np.testing.assert_allclose(found, alone(name), rtol=1e-4)


def test_zero_cuts_the_state_over_the_replicas():
    cfg = cases.config("llama")
    held = {}
    for zero in (0, 1):
        plan = cases.plan_of("llama", {"data": 4, "fsdp": 2}, zero=zero)
        mesh = mesh_of(plan)
        params = place(plan, cfg, mesh, cases.start("llama", "float32"))
        state = start(plan, cfg, mesh, ADAM, params)["optimizer"]
        held[zero] = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    counters = 4
    assert held[0] - counters == 4 * (held[1] - counters)
