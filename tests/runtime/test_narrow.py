"""Weights and caches in fp8 and int4, as `test_int8.py` has them for int8."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.plans import ServeScheduling
from shardwise.runtime import generate, load, quantise_params
from shardwise.runtime.cache_entry import CACHES, rounded
from shardwise.runtime.engine import Sampling
from shardwise.runtime.engine.opening import EngineSettings, open_engine
from shardwise.runtime.quant import Quantized, dequantise, looked_up, product, quantise

PROMPT = [5, 9, 2, 7, 1, 3]


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_int4_has_a_scale_for_32_inputs_and_is_off_by_half_of_it():
    w = normal(0, 4, 96, 10) * normal(1, 4, 96, 1)
    small = quantise(w, (0, 1), "int4")
    assert small.values.dtype == jnp.int4
    assert small.scale.shape == (4, 3, 10)
    off = jnp.abs(dequantise(small) - w).reshape(4, 3, 32, 10).max(2)
    assert (off <= small.scale / 2 * 1.0001).all()
    odd = quantise(normal(2, 20, 3), (0,), "int4")  # 20 inputs: groups of 4
    assert odd.scale.shape == (5, 3)


def test_fp8_is_off_by_a_16th_or_by_what_is_below_its_range():
    w = normal(0, 64, 10) * normal(1, 64, 1)
    small = quantise(w, (0,), "fp8")
    assert small.values.dtype == jnp.float8_e4m3fn
    assert small.scale.shape == (1, 10)
    assert float(jnp.abs(small.values.astype(jnp.float32)).max()) == 448
    most = jnp.maximum(jnp.abs(w) / 16, small.scale * 2.0**-10)
    assert (jnp.abs(dequantise(small) - w) <= most * 1.0001).all()


@pytest.mark.parametrize("kept", ["int4", "fp8"])
@pytest.mark.parametrize(
    ("spec", "shape", "summed"),
    [
        ("BTD,DV->BTV", (64, 40), (0,)),
        ("BTD,VD->BTV", (40, 64), (1,)),
        ("BTD,DNH->BTNH", (64, 2, 5), (0,)),
    ],
)
def test_a_product_is_that_of_the_weight_it_stands_for(kept, spec, shape, summed):
    x, small = normal(0, 2, 3, 64), quantise(normal(1, *shape), summed, kept)
    wanted = jnp.einsum(spec, x, dequantise(small))
    np.testing.assert_allclose(product(spec, x, small), wanted, rtol=1e-5, atol=1e-5)
    narrow = product(spec, x.astype(jnp.bfloat16), small, jnp.float32)
    assert narrow.dtype == jnp.float32


@pytest.mark.parametrize("kept", ["int4", "fp8"])
def test_a_looked_up_row_is_the_tables(kept):
    small = quantise(normal(0, 40, 64), (1,), kept)
    rows = jnp.asarray([[3, 0, 39]])
    np.testing.assert_array_equal(looked_up(small, rows, jnp.float32), dequantise(small)[rows])


@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_a_cache_rounds_each_head_by_its_own_greatest(kept):
    x = normal(0, 1, 5, 2, 16) * normal(1, 1, 5, 2, 1) * 100
    values, scale = rounded(x, CACHES[kept])
    back = values.astype(jnp.float32) * scale.astype(jnp.float32)[..., None]
    most = jnp.abs(x).max(-1, keepdims=True)
    allowed = most / 127 * 0.76 if kept == "int8" else jnp.maximum(jnp.abs(x) / 15, most / 2**18)
    assert (jnp.abs(back - x) <= allowed).all()


@pytest.fixture(
    scope="module",
    params=[
        "llama",
        pytest.param("qwen3-moe", marks=pytest.mark.long),
        pytest.param("deepseek-v3", marks=pytest.mark.slow),
        pytest.param("gpt-oss", marks=pytest.mark.long),
    ],
)
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    cfg = goldens.config(request.param)
    goldens.write_checkpoint(cfg, folder)
    (folder / "config.json").write_text(json.dumps(goldens.document(request.param)["config"]))
    return folder, cfg


@pytest.mark.parametrize("kept", ["int8", "fp8", "int4"])
def test_a_checkpoint_is_read_straight_into_small_numbers(checkpoint, kept):
    folder, cfg = checkpoint
    found = load(folder, cfg, jnp.float32, kept=kept)
    wanted = jax.jit(lambda p: quantise_params(p, cfg, kept))(load(folder, cfg, jnp.float32))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=1e-6
        ),
        found,
        wanted,
    )
    leaves = jax.tree.leaves(found, is_leaf=lambda w: isinstance(w, Quantized))
    assert any(isinstance(w, Quantized) for w in leaves)


def answer(folder, budget=16, **kept):
    sizes = {"batch": 2, "budget": budget, "most_tokens": 40, "pages": 12}
    settings = EngineSettings(**sizes, scheduling=ServeScheduling(page_size=8), **kept)
    engine = open_engine(folder, settings)
    (generation,) = engine.add(PROMPT, Sampling(temperature=0, max_tokens=6, ignore_end=True))
    while not engine.idle:
        engine.step()
    return generation.tokens


@pytest.mark.parametrize("kept", spread(["int4", "fp8"], slow=1))
def test_an_engine_says_what_the_weights_say_that_the_small_numbers_stand_for(checkpoint, kept):
    folder, cfg = checkpoint
    wide = jax.tree.map(
        lambda w: dequantise(w) if isinstance(w, Quantized) else w,
        load(folder, cfg, jnp.float32, kept=kept),
        is_leaf=lambda w: isinstance(w, Quantized),
    )
    tokens = jnp.asarray([PROMPT], jnp.int32)
    assert answer(folder, weights=kept) == generate(wide, tokens, cfg, 6)[0].tolist()


def test_a_prompt_in_chunks_says_the_same_of_an_fp8_cache(checkpoint):
    folder, _ = checkpoint
    assert answer(folder, cache="fp8") == answer(folder, budget=4, cache="fp8")


def test_scales_that_devices_would_share_are_refused(checkpoint):
    folder, _ = checkpoint
    with pytest.raises(BadRequest, match=r"int4 weights .* or int8, whose scales span all"):
        open_engine(folder, EngineSettings(weights="int4", mesh={"tensor": 8}))


def test_an_unknown_form_is_refused_by_what_there_is(checkpoint):
    folder, _ = checkpoint
    with pytest.raises(BadRequest, match="f32, bf16, f16, int8, fp8, int4"):
        open_engine(folder, EngineSettings(weights="int3"))
    with pytest.raises(BadRequest, match=r"f32, bf16, f16, int8, fp8$"):
        open_engine(folder, EngineSettings(cache="int4"))
