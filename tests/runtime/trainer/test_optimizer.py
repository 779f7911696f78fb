"""The plan's optimizer: dtypes of what it keeps, the master copy, schedules, what decays."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.tiers import spread

from runtime.trainer.made import make_plan
from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.plans.train import TrainDtypes
from shardwise.runtime.init import initialise, shapes
from shardwise.runtime.trainer import Settings, apply_updates, optimizer_of
from shardwise.runtime.trainer.adafactor import scale_by_adafactor
from shardwise.runtime.trainer.adam8bit import BLOCK, codebook, dequantise, quantise
from shardwise.runtime.trainer.optimizer import rate_of, sides

BF16 = TrainDtypes(param="bf16", compute="bf16", grad="bf16", master="f32", moments="bf16")


@cache
def initial(cfg, dtype):
    return initialise(cfg, jax.random.key(0), dtype)


def setting(tmp_path, settings=None, **changes):
    plan = make_plan(tmp_path, **changes)
    cfg = load_model(plan.model)
    optimizer = optimizer_of(plan, cfg, settings or Settings(steps=10, lr=0.01, decay=0.0))
    kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[plan.dtypes.param]
    return optimizer, initial(replace(cfg, name="tiny"), kind)


def noise(params, seed):
    draw = np.random.default_rng(seed).normal
    return jax.tree.map(lambda p: jnp.asarray(draw(size=p.shape), p.dtype), params)


def steps(optimizer, params, n=4):
    @jax.jit
    def one(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return apply_updates(params, updates), state

    state = optimizer.init(params)
    for seed in range(n):
        params, state = one(params, state, noise(params, seed))
    return params, state


def test_parameters_are_the_rounded_master(tmp_path):
    optimizer, params = setting(tmp_path, dtypes=BF16)
    params, state = steps(optimizer, params)
    for p, m in zip(jax.tree.leaves(params), jax.tree.leaves(state["master"]), strict=True):
        assert (p.dtype, m.dtype) == (jnp.bfloat16, jnp.float32)
        np.testing.assert_array_equal(p, m.astype(jnp.bfloat16))


def test_the_state_is_stored_in_the_plans_dtypes(tmp_path):
    optimizer, params = setting(tmp_path, dtypes=BF16)
    state = jax.eval_shape(optimizer.init, params)
    count = sum(x.size for x in jax.tree.leaves(params))
    moments = [x for x in jax.tree.leaves(state["inner"]) if x.ndim]
    assert {x.dtype.name for x in moments} == {"bfloat16"}
    assert sum(x.size for x in moments) == 2 * count
    assert sum(x.size for x in jax.tree.leaves(state["master"])) == count


def test_adam_in_f32_is_optax_adam(tmp_path):
    settings = Settings(steps=10, lr=0.01, schedule="constant", decay=0.0)
    optimizer, params = setting(tmp_path, settings)
    ours, _ = steps(optimizer, params)
    with jax.numpy_dtype_promotion("standard"):
        theirs, _ = steps(optax.adam(0.01, b2=0.95), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), ours, theirs)


@pytest.mark.parametrize(
    ("name", "arrays"), spread([("sgd", 0), ("muon", 1), ("adafactor", 0)], slow=2, rows=True)
)
def test_other_optimizers_keep_less(tmp_path, name, arrays):
    optimizer, params = setting(tmp_path, optimizer=name)
    after, state = steps(optimizer, params)
    w = params["layers"][0]["mlp.gate"]
    held = [x for x in jax.tree.leaves(state["inner"]) if x.shape == w.shape]
    rows = [r for r in jax.tree.leaves(params) if r.shape == w.shape]
    assert len(held) == arrays * len(rows)
    assert not np.array_equal(w, after["layers"][0]["mlp.gate"])


def test_muon_rounds_its_momentum_and_nothing_else(tmp_path):
    optimizer, params = setting(tmp_path, dtypes=BF16, optimizer="muon")
    made = [x for x in jax.tree.leaves(optimizer.init(params)["inner"]) if x.ndim]
    assert {x.shape for x in made} <= {x.shape for x in jax.tree.leaves(params)}


@pytest.mark.slow
def test_adafactor_of_one_matrix_is_optax_s(tmp_path):
    """optax factors the two longest dims; the sides here are the rows and the heads."""
    grads = [jax.random.normal(jax.random.key(i), (3, 12, 4, 2)) for i in range(3)]
    ours = scale_by_adafactor(lambda _: {"w": ((1,), (2, 3))})
    theirs = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=1), optax.clip_by_block_rms(1.0)
    )
    state = ours.init({"w": grads[0]})
    assert (state.rows["w"].shape, state.columns["w"].shape) == ((3, 12), (3, 4, 2))
    each = [{"w": grads[0][layer].reshape(12, 8)} for layer in range(3)]
    states = [theirs.init(w) for w in each]
    for g in grads:
        found, state = ours.update({"w": g}, state)
        for layer in range(3):
            one = {"w": g[layer].reshape(12, 8)}
            wanted, states[layer] = theirs.update(one, states[layer], each[layer])
            np.testing.assert_allclose(found["w"][layer].reshape(12, 8), wanted["w"], rtol=1e-5)


def test_a_matrix_of_adafactor_is_what_the_table_says(tmp_path):
    plan = make_plan(tmp_path, config={"hidden_size": 64})
    cfg = load_model(plan.model)
    found = sides(cfg, shapes(cfg))
    assert found["layers"][0]["attention.q"] == ((1,), (2, 3))
    assert found["layers"][0]["attention.o"] == ((1, 2), (3,))
    assert found["embedding"] == ((0,), (1,))
    assert found["norm.final"] is None


@pytest.mark.parametrize("signed", [True, False])
def test_8_bits_are_near(signed):
    """Within half a step of the codebook, whose steps are at most 0.0141 (0.007 without sign)."""
    x = jax.random.normal(jax.random.key(0), (3, 600))
    x = x if signed else jnp.square(x)
    codes, scales = quantise(x, signed)
    assert (codes.dtype, codes.shape, scales.shape) == (jnp.uint8, x.shape, (3, 3))
    error = np.abs(dequantise(codes, scales, signed) - x)
    blocks = np.repeat(np.asarray(scales), BLOCK, axis=1)[:, :600]
    assert (error / blocks).max() <= np.diff(codebook(signed)).max() / 2 * 1.001


@pytest.mark.slow
def test_8_bits_keep_zero_and_what_is_not_zero():
    x = jnp.asarray([[0.0, 1e-12, 1.0]])
    codes, scales = quantise(x, signed=False)
    again = dequantise(codes, scales, signed=False)
    assert int(codes[0, 0]) == 0
    assert again[0, 0] == 0 < again[0, 1]
    assert not np.any(dequantise(*quantise(jnp.zeros((2, 5)), True), True))


@pytest.mark.slow
def test_8_bit_adam_follows_adam(tmp_path):
    """The same noise for 20 steps: updates differ by the rounding of the moments alone."""
    found = {}
    for name in ("adam", "adam8bit"):
        settings = Settings(steps=20, lr=0.01, schedule="constant", decay=0.0)
        optimizer, params = setting(tmp_path, settings, optimizer=name)
        after, state = steps(optimizer, params, 20)
        moved = jax.tree.map(lambda a, b: a - b, after, params)
        found[name] = jnp.concatenate([x.ravel() for x in jax.tree.leaves(moved)])
    apart = jnp.linalg.norm(found["adam"] - found["adam8bit"]) / jnp.linalg.norm(found["adam"])
    assert 0 < apart < 0.05
    kinds = {x.dtype.name for x in jax.tree.leaves(state["inner"]) if x.ndim}
    assert kinds == {"uint8", "float32"}


@pytest.mark.slow
def test_matrices_decay_and_norms_do_not(tmp_path):
    settings = Settings(steps=10, lr=0.1, schedule="constant", decay=0.5)
    optimizer, params = setting(tmp_path, settings)
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    np.testing.assert_allclose(updates["embedding"], -0.05 * params["embedding"], rtol=1e-5)
    assert not np.any(updates["norm.final"])


def test_the_cosine_ends_at_a_tenth():
    rate = rate_of(Settings(steps=100, lr=2.0, warmup=20))
    found = [float(rate(step)) for step in (0, 19, 20, 60, 100)]
    assert found == pytest.approx([0.1, 2.0, 2.0, 1.1, 0.2], rel=1e-5)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"steps": 0}, "--steps is 0; it must be at least 1"),
        ({"steps": 3, "warmup": 4}, r"--warmup 4 is outside 0\.\.3"),
        ({"steps": 3, "lr": -1.0}, "--lr is -1.0"),
        ({"steps": 3, "schedule": "cosin"}, "did you mean 'cosine'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, text):
    with pytest.raises(BadRequest, match=text):
        Settings(**values)
