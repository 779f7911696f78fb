"""int8 tables, heads and caches: what the values say, and how far that is from what was rounded."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens

from shardwise.models import kv_elements, params_text
from shardwise.runtime import decode as decode_step
from shardwise.runtime import empty_cache, initialise, quantise_params
from shardwise.runtime import prefill as prefill_prompts
from shardwise.runtime.attention import Scaled, Scoring, dense_attention
from shardwise.runtime.options import Options
from shardwise.runtime.quant import Quantized, dequantise, looked_up, product, quantise

D, V = 32, 40
prefill = jax.jit(prefill_prompts, static_argnums=(4,))
decode = jax.jit(decode_step, static_argnums=(3, 4))


@cache
def int8_of(cfg):
    return jax.jit(lambda key: quantise_params(initialise(cfg, key), cfg))(jax.random.key(0))


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


# ---- tables and heads ----------------------------------------------------------------------------


def test_a_looked_up_row_is_off_by_half_its_scale():
    table, tokens = normal(0, V, D) * normal(1, V, 1), jnp.asarray([[3, 0, V - 1]])
    small = quantise(table, (1,))
    rows = looked_up(small, tokens, jnp.float32)
    np.testing.assert_allclose(rows, dequantise(small)[tokens], rtol=1e-6)
    assert (jnp.abs(rows - table[tokens]) <= small.scale[tokens] / 2 * 1.0001).all()


@pytest.mark.parametrize(("spec", "summed"), [("BTD,DV->BTV", 0), ("BTD,VD->BTV", 1)])
def test_logits_are_off_by_half_a_scale_per_input(spec, summed):
    """Each of the D weights of a channel is off by at most half its scale."""
    x, w = normal(0, 2, 3, D), normal(1, *((D, V) if summed == 0 else (V, D)))
    small = quantise(w, (summed,))
    got, exact = product(spec, x, small, jnp.float32), product(spec, x, w)
    most = jnp.abs(x).sum(-1, keepdims=True) * small.scale.reshape(1, 1, V) / 2
    assert (jnp.abs(got - exact) <= most * 1.0001).all()
    wide = product(spec, x.astype(jnp.bfloat16), small, jnp.float32)
    assert wide.dtype == jnp.float32  # as an unquantised head gives


@pytest.mark.parametrize(
    "name",
    ["llama", "opt", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gemma", "gpt-oss"))],
)
def test_all_but_vectors_and_routers_are_int8(name):
    """What the planner counts at 8 bits is kept in 8 bits, scales and vectors aside."""
    cfg = goldens.config(name)
    small = int8_of(cfg)
    table = small["embedding"]
    assert table.scale.shape == (cfg.embedding_rows, 1)
    assert ("lm_head" in small) is not cfg.tied_embeddings
    if not cfg.tied_embeddings:
        assert small["lm_head"].scale.shape == (1, cfg.vocabulary)
    leaves = jax.tree.leaves(small, is_leaf=lambda w: isinstance(w, Quantized))
    int8 = sum(w.values.size for w in leaves if isinstance(w, Quantized))
    layers = [w for group in small["layers"] for w in group.items()]
    others = [n for n, w in (*small.items(), *layers) if n != "layers" and hasattr(w, "shape")]
    stays = ("norm", "bias", "router", "sinks", "_norm")
    assert all(any(word in n for word in stays) for n in others), others
    wide = sum(w.size for w in leaves if not isinstance(w, Quantized))
    assert int8 + wide == params_text(cfg)


# ---- the cache -----------------------------------------------------------------------------------


def plain(q_BTNH, k_BSKH, v_BSKU, scoring):
    """Another kernel than the dense one: it is given keys and values made wide."""
    assert not isinstance(k_BSKH, Scaled)
    assert not isinstance(v_BSKU, Scaled)
    return dense_attention(q_BTNH, k_BSKH, v_BSKU, scoring)


def test_scales_of_keys_and_values_are_folded_in():
    B, T, S, N, K, H = 2, 1, 12, 4, 2, 8
    rng = np.random.default_rng(0)
    k, v = (
        Scaled(
            jnp.asarray(rng.integers(-127, 128, (B, S, K, H)), jnp.int8),
            jnp.asarray(rng.uniform(0.001, 0.03, (B, K, S)), jnp.bfloat16),
        )
        for _ in range(2)
    )
    places = jnp.broadcast_to(jnp.arange(S), (B, S))
    scoring = Scoring(
        scale=0.3,
        softcap=20.0,
        window=None,
        chunk=None,
        q_positions_BT=jnp.full((B, T), 9),
        k_positions_BS=places,
        sinks_N=normal(1, N),
    )
    q = normal(2, B, T, N, H)
    folded = dense_attention(q, k, v, scoring)
    wide = dense_attention(q, k.wide(jnp.float32), v.wide(jnp.float32), scoring)
    np.testing.assert_allclose(folded, wide, rtol=1e-4, atol=1e-5)


LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt-oss", "deepseek-v3")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", *LARGER])
def test_decoding_from_an_int8_cache(name):
    """An entry is off by at most half its scale, 1/254 of the largest of its head: evenly
    distributed that is 1/440 of it, so about 1 % of an entry where the largest is three to four
    times the typical one. Keys and values of three layers are off, each by itself: 1 % sqrt(6)
    of the logits at most, since all but attention passes by."""
    cfg = goldens.config(name)
    params = initialise(cfg, jax.random.key(0))
    tokens = jnp.asarray(goldens.document(name)["prompt"], jnp.int32)
    lengths = jnp.asarray([5, 3], jnp.int32)
    caches = {
        kind: prefill(params, tokens[:, :5], lengths, empty_cache(cfg, 2, 12, kind), cfg)[1]
        for kind in (jnp.float32, jnp.int8)
    }
    wide, small = caches.values()
    for arrays, kept in zip(wide.groups, small.groups, strict=True):
        for rounded in (n for n in kept if not n.endswith(".scale")):
            parts = [arrays[n] for n in (("c", "r") if rounded == "cr" else (rounded,))]
            exact, scale_LBKS = jnp.concatenate(parts, -1), kept[f"{rounded}.scale"]
            heads = scale_LBKS.shape[2]
            shape = (*exact.shape[:3], heads, exact.shape[3] // heads)
            held = kept[rounded].reshape(shape).astype(jnp.float32)
            scale = jnp.swapaxes(scale_LBKS, 2, 3)[..., None].astype(jnp.float32)
            off = jnp.abs(held * scale - exact.reshape(shape))
            if rounded != "cr":  # elsewhere the layers above see what rounding did to those below
                assert (off[0, :, :3] <= scale[0, :, :3] * 0.502).all()
    folded, made_wide = Options(), Options(kernel=plain)
    same = small
    for i in range(2):
        now = jnp.stack([tokens[0, 5 + i], tokens[1, 3 + i]])
        exact, wide = decode(params, now, wide, cfg, folded)
        other, same = decode(params, now, same, cfg, made_wide)
        got, small = decode(params, now, small, cfg, folded)
        np.testing.assert_allclose(got, other, rtol=1e-3, atol=1e-4)
        error, size = (float(jnp.sqrt(jnp.square(x).mean())) for x in (got - exact, exact))
        assert 0 < error < 0.01 * 6**0.5 * size
    held = sum(x.size for g in small.groups for n, x in g.items() if not n.endswith(".scale"))
    assert held == 2 * 12 * sum(kv_elements(cfg.layer(i).mixer) for i in range(cfg.layers))
