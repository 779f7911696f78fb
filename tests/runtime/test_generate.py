"""Prefill and decode over the contiguous cache, and int8 weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens

from shardwise.errors import BadRequest
from shardwise.models import kv_elements
from shardwise.runtime import (
    decode,
    empty_cache,
    forward,
    generate,
    initialise,
    load,
    loss,
    prefill,
    quantise_params,
)
from shardwise.runtime.options import Options
from shardwise.runtime.quant import Quantized, dequantise, quantise


def loaded(name, folder):
    cfg = goldens.config(name)
    goldens.write_checkpoint(cfg, folder)
    return cfg, load(folder, cfg), jnp.asarray(goldens.document(name)["prompt"], jnp.int32)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "deepseek-v3")]


@pytest.mark.parametrize("name", ["gpt-oss", "opt", *SLOW])
def test_decode_steps_give_the_logits_of_the_whole_sequence(name, tmp_path):
    cfg, params, tokens = loaded(name, tmp_path)
    whole = goldens.logits(name)
    lengths = jnp.asarray([5, 3], jnp.int32)  # rows of different length, padded on the right
    first = jax.jit(lambda p, t, n, c: prefill(p, t, n, c, cfg))
    empty = empty_cache(cfg, 2, 12, jnp.float32)
    logits, cache = first(params, tokens[:, :5], lengths, empty)
    np.testing.assert_allclose(logits[0], whole[0, 4], atol=1e-4)
    np.testing.assert_allclose(logits[1], whole[1, 2], atol=1e-4)
    step = jax.jit(lambda p, t, c: decode(p, t, c, cfg))
    for i in range(4):
        now = jnp.stack([tokens[0, 5 + i], tokens[1, 3 + i]])
        logits, cache = step(params, now, cache)
        np.testing.assert_allclose(logits[0], whole[0, 5 + i], atol=1e-4)
        np.testing.assert_allclose(logits[1], whole[1, 3 + i], atol=1e-4)
    assert cache.lengths_B.tolist() == [9, 7]


def test_padded_prompts_generate_what_they_do_alone(tmp_path):
    cfg, params, tokens = loaded("mistral", tmp_path)
    lengths = jnp.asarray([12, 7], jnp.int32)
    both = generate(params, tokens, cfg, 6, lengths_B=lengths)
    alone = generate(params, tokens[1:, :7], cfg, 6)
    assert both[1].tolist() == alone[0].tolist()


@pytest.mark.parametrize("name", ["llama", "deepseek-v3"])
def test_the_cache_holds_the_counted_elements(name):
    cfg = goldens.config(name)
    cache = empty_cache(cfg, 2, 16, jnp.float32)
    held = sum(array.size for group in cache.groups for array in group.values())
    assert held == 2 * 16 * sum(kv_elements(cfg.layer(i).mixer) for i in range(cfg.layers))


def test_no_tokens_are_refused(tmp_path):
    cfg = goldens.config("llama")
    with pytest.raises(BadRequest, match="0 new tokens"):
        generate({}, jnp.zeros((1, 4), jnp.int32), cfg, 0)


def test_a_prompt_without_rows_is_refused():
    cfg = goldens.config("llama")
    for tokens in (jnp.zeros(4, jnp.int32), jnp.zeros((1, 1, 4), jnp.int32)):
        with pytest.raises(BadRequest, match=r"give \[B, T\], one row as tokens\[None\]"):
            generate({}, tokens, cfg, 1)
        with pytest.raises(BadRequest, match=r"give \[B, T\]"):
            forward({}, tokens, cfg)
    with pytest.raises(BadRequest, match="the batch has no targets; give both"):
        loss({}, {"tokens": tokens}, cfg)


# ---- int8 ----------------------------------------------------------------------------------------


def test_quantising_rounds_to_half_a_step():
    w = jax.random.normal(jax.random.key(0), (3, 16, 8))
    q = quantise(w, (1,))
    assert q.values.dtype == jnp.int8
    assert q.scale.shape == (3, 1, 8)
    assert (jnp.abs(dequantise(q) - w) <= q.scale / 2 + 1e-7).all()
    zero = quantise(jnp.zeros((4, 2)), (0,))
    assert not dequantise(zero).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "experts"),
    [
        ("llama", "dense"),
        pytest.param("gpt-oss", "ragged", marks=pytest.mark.slow),
        pytest.param("deepseek-v3", "dense", marks=pytest.mark.slow),
    ],
)
def test_int8_weights_compute_what_their_values_say(name, experts):
    """The scaled int8 product equals the product with the rounded weights; so does decoding."""
    cfg = goldens.config(name)
    params = initialise(cfg, jax.random.key(0))
    small = quantise_params(params, cfg)
    rounded = jax.tree.map(
        lambda w: dequantise(w) if isinstance(w, Quantized) else w,
        small,
        is_leaf=lambda w: isinstance(w, Quantized),
    )
    kinds = {type(w).__name__ for group in small["layers"] for w in group.values()}
    assert "Quantized" in kinds
    tokens = jnp.asarray(goldens.document(name)["prompt"], jnp.int32)
    options = Options(experts=experts)
    run = jax.jit(lambda params: forward(params, tokens, cfg, options))
    wanted, got = run(rounded), run(small)
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), atol=1e-4)
    np.testing.assert_array_equal(
        generate(small, tokens, cfg, 4, options), generate(rounded, tokens, cfg, 4, options)
    )
    if name == "llama":  # elsewhere the rounding sends tokens to other experts
        assert np.abs(np.asarray(run(params)) - got).max() < 0.3
