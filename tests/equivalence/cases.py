"""Plans for tiny models, and what one device computes: losses and gradients over three SGD steps.

The model of one device is the reference for every combination; it is compiled once per model.
"""

from functools import lru_cache, partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens

from shardwise.plans.identity import model_hash
from shardwise.plans.train import TrainDtypes, TrainPlan
from shardwise.runtime import Options, initialise, loss, mesh_of
from shardwise.runtime.parallel import loss_and_grads, place, whole

B, T, V, STEPS, RATE = 16, 16, 64, 3, 0.3
F32 = TrainDtypes(param="f32", compute="f32", grad="f32", master="none", moments="f32")
F64 = TrainDtypes(param="f64", compute="f64", grad="f64", master="none", moments="f64")


@lru_cache(maxsize=32)
def config(name):
    return goldens.config(name)


def plan_of(name, mesh, **choices):
    """A plan in f32 with one microbatch unless told otherwise."""
    cfg = config(name)
    stages = mesh.get("stage", 1)
    even = [cfg.layers // stages + (i < cfg.layers % stages) for i in range(stages)]
    default = {
        "global_batch_sequences": B,
        "microbatches": 1,
        "layers_per_stage": tuple(even),
        "dtypes": F32,
        "remat": "none",
    }
    return TrainPlan(
        model=name,
        model_hash=model_hash(cfg),
        slice="cpu",
        mesh=mesh,
        box=(prod(mesh.values()),),
        sequence_length=T,
        **{**default, **choices},
    )


def batch_of(weighted=True, packed=()):
    """Tokens, their targets, and weights that leave some tokens out, unevenly over the shards; and
    the documents of a row where it is said how long they are."""
    random = np.random.RandomState(1)
    tokens = random.randint(0, V, (B, T + 1)).astype(np.int32)
    weights = (random.rand(B, T) < np.linspace(0.3, 1, B)[:, None]).astype(np.float32)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}
    if packed:
        at = [(i, t) for i, length in enumerate(packed) for t in range(length)]
        segments, positions = np.array(at, np.int32).T
        batch |= {"segments": np.tile(segments, (B, 1)), "positions": np.tile(positions, (B, 1))}
    return batch if weighted else {k: v for k, v in batch.items() if k != "weights"}


@lru_cache(maxsize=32)
def start(name, dtype):
    return jax.tree.map(np.asarray, initialise(config(name), jax.random.key(0), jnp.dtype(dtype)))


def descend(params, grads):
    return jax.tree.map(lambda w, g: w - RATE * np.asarray(g), params, grads)


def run_steps(step, params):
    """The first gradients, and the losses of three SGD steps; the update is NumPy's."""
    first, losses = None, []
    for _ in range(STEPS):
        value, grads = step(params)
        first = first if first is not None else grads
        losses.append(float(value))
        params = descend(params, grads)
    return losses, first


@lru_cache(maxsize=32)
def reference(name, dtype, packed=()):
    cfg = config(name)
    compute = {"float32": "f32", "float64": "f64"}[dtype]
    options = Options(compute=compute, experts="ragged")
    gradient = jax.jit(jax.value_and_grad(partial(loss, cfg=cfg, options=options)))
    batch = {k: jnp.asarray(v) for k, v in batch_of(packed=packed).items()}

    def step(params):
        value, grads = gradient(params, batch)
        return value, jax.tree.map(np.asarray, grads)

    return run_steps(step, start(name, dtype))


def sharded(name, plan, dtype, tensor_matmul):
    cfg, mesh = config(name), mesh_of(plan)
    gradient = loss_and_grads(plan, cfg, mesh, tensor_matmul)

    def step(params):
        value, grads = gradient(place(plan, cfg, mesh, params), batch_of())
        return value, jax.tree.map(np.asarray, whole(plan, cfg, mesh, grads))

    return run_steps(step, start(name, dtype))


def error(want, got):
    want, got = np.asarray(want), np.asarray(got)
    assert want.shape == got.shape
    return float(np.linalg.norm(want - got) / (np.linalg.norm(want) + 1e-30))


def errors(want, got):
    """Relative error in norm by tensor. A gradient that is zero but for rounding (a key's bias
    without rotation: softmax does not see it) has an error only if the other's is not."""
    arrays = dict(jax.tree_util.tree_leaves_with_path(got))
    nothing = 1e-6 * np.sqrt(sum(np.sum(np.square(w)) for w in jax.tree.leaves(want)))
    found = {}
    for path, w in jax.tree_util.tree_leaves_with_path(want):
        none = max(np.linalg.norm(w), np.linalg.norm(arrays[path])) < nothing
        found[jax.tree_util.keystr(path)] = 0.0 if none else error(w, arrays[path])
    return found


def check(name, mesh, *, bits=32, tensor_matmul="plain", **choices):
    """Every gradient to 1e-5 in norm (1e-11 in 64 bits) and the loss of three SGD steps."""
    with jax.enable_x64(bits == 64):
        dtype, limit, dtypes = {32: ("float32", 1e-5, F32), 64: ("float64", 1e-11, F64)}[bits]
        plan = plan_of(name, mesh, **{"dtypes": dtypes, **choices})
        want_losses, want = reference(name, dtype, plan.packed_lengths)
        losses, got = sharded(name, plan, dtype, tensor_matmul)
    worst = errors(want, got)
    assert max(worst.values()) < limit, {k: e for k, e in worst.items() if e >= limit}
    np.testing.assert_allclose(losses, want_losses, rtol=limit)
    assert losses[-1] < losses[0]


def label(case):
    """A combination as a test id: model, mesh and choices."""
    name, mesh, choices = case
    axes = "x".join(f"{axis}{n}" for axis, n in mesh.items())
    more = "-".join(f"{k}={v}" for k, v in choices.items())
    return "-".join(part for part in (name, axes, more) if part)


def combinations(*cases, slow=(), long=()):
    """Parametrise a test by (model, mesh, choices); the combination is the id. What is said again
    in 64 bits, of larger models or of more strategies at once is for the slow run, or is `long`
    where another says the same of a choice."""
    marked = [pytest.param(case, marks=pytest.mark.slow) for case in slow]
    marked += [pytest.param(case, marks=pytest.mark.long) for case in long]
    return pytest.mark.parametrize("case", [*cases, *marked], ids=label)
