"""The forward pass and the loss: remat, scans, precision, packing, and what is refused."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.ad_checkpoint import saved_residuals  # print_saved_residuals alone is public
from tests.runtime import goldens

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, load_model, params_text
from shardwise.models.remat import SAVED_KINDS
from shardwise.models.runnable import plain
from shardwise.models.specs import Attention, Layer, Mlp
from shardwise.runtime import (
    Options,
    forward,
    generate,
    initialise,
    load,
    loss,
)
from shardwise.runtime.model import call_of, embed, head
from shardwise.runtime.stack import run_stack, segments

BATCH = {
    "tokens": jnp.asarray(np.random.RandomState(3).randint(0, 64, (2, 8)), jnp.int32),
    "targets": jnp.asarray(np.random.RandomState(4).randint(0, 64, (2, 8)), jnp.int32),
}


@cache
def tiny(name="llama"):
    cfg = goldens.config(name)
    return cfg, initialise(cfg, jax.random.key(0))


def step(cfg, params, options, batch=BATCH):
    return jax.jit(jax.value_and_grad(partial(loss, cfg=cfg, options=options)))(params, batch)


def close(a, b, limit=1e-6):
    def one(x, y):
        x, y = np.asarray(x), np.asarray(y)
        assert np.linalg.norm(x - y) <= limit * (np.linalg.norm(x) + 1e-12)

    jax.tree.map(one, a, b)


# ---- Remat ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept():
    """A model, and its step that keeps all."""
    cfg, params = tiny()
    return cfg, params, step(cfg, params, Options())


@pytest.mark.parametrize("remat", ["matmul_outputs", "block", "offload"])
def test_remat_changes_no_gradient(remat, kept):
    cfg, params, want = kept
    close(want, step(cfg, params, Options(remat=remat)))


def saved(remat, **kinds):
    """Names of what a layer's backward pass keeps, by policy."""
    cfg, params = tiny()
    options = Options(remat=remat, remat_kinds=tuple(kinds.items()), scan=False)
    found = saved_residuals(partial(loss, cfg=cfg, options=options), params, BATCH)
    return {why.split("'")[1] for _, why in found if why.startswith("named")}


def test_policies_keep_what_they_name():
    assert saved("block") <= {"block_input"}
    kept = saved("matmul_outputs")
    assert {"qkv", "mlp_in"} <= kept <= {"block_input", "qkv", "attention_out", "mlp_in", "mlp_out"}
    assert "activation" in saved("block", activation="keep")
    assert "qkv" not in saved("matmul_outputs", qkv="recompute")


def test_names_of_policies_are_checked():
    with pytest.raises(BadRequest, match=r"remat policy 'blok'.*block"):
        Options(remat="blok")
    with pytest.raises(BadRequest, match="activation 'mlp'"):
        Options(remat_kinds=(("mlp", "keep"),))
    with pytest.raises(BadRequest, match="dtype 'int8'"):
        Options(compute="int8")


def test_every_saved_kind_is_marked():
    seen = set()

    def at(name, x):
        seen.add(name)
        return x

    cfg, params = tiny()
    jax.eval_shape(partial(forward, cfg=cfg, options=Options(at=at)), params, BATCH["tokens"])
    assert seen == {*SAVED_KINDS, "lookup", "embedding", "logits"}


# ---- The loop over layers ------------------------------------------------------------------------


def test_segments():
    def shape(name):
        return [(len(s.period), s.times) for s in segments(load_model(name))]

    assert shape("llama-3-70b") == [(1, 80)]
    assert shape("gemma-2-9b") == [(2, 21)]
    assert shape("deepseek-v3") == [(1, 3), (1, 58)]
    assert shape("smollm3-3b") == [(4, 9)]
    assert [(len(s.period), s.times) for s in segments(goldens.config("gemma3"))] == [
        (1, 5),
        (1, 1),
        (1, 2),
    ]


LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2-moe", "gemma3")]


@pytest.mark.parametrize("name", ["llama", *LARGER])
def test_a_scan_is_the_loop_written_out(name):
    cfg, params = tiny(name)
    close(step(cfg, params, Options()), step(cfg, params, Options(scan=False)), 1e-5)


@pytest.mark.slow
def test_stages_compose_to_the_stack():
    cfg, params = tiny("gemma3")
    tokens = BATCH["tokens"]
    call = call_of(tokens, cfg, Options())
    x = embed(params, tokens, cfg, call)
    for first, last in ((0, 3), (3, 7), (7, 8)):
        layers = tuple(
            jax.tree.map(partial(_cut, cfg=cfg, group=i, first=first, last=last), group)
            for i, group in enumerate(params["layers"])
        )
        x, _ = run_stack(layers, x, cfg, call, first=first, last=last)
    close(forward(params, tokens, cfg), head(params, x, cfg, call), 1e-5)


def _cut(w, cfg, group, first, last):
    """The layers of a group that a stage holds."""
    return w[cfg.pattern[:first].count(group) : cfg.pattern[:last].count(group)]


# ---- Precision -----------------------------------------------------------------------------------


def test_bf16_compute_on_f32_parameters():
    cfg, params = tiny()
    exact = forward(params, BATCH["tokens"], cfg)
    rounded = forward(params, BATCH["tokens"], cfg, Options(compute="bf16"))
    assert rounded.dtype == jnp.float32
    error = np.abs(np.asarray(exact - rounded)).max()
    assert 1e-5 < error < 0.1
    _, grads = step(cfg, params, Options(compute="bf16", remat="block"))
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}


# ---- Packing -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_packed_documents_do_not_see_each_other():
    cfg, params = tiny("gemma2")
    first, second = BATCH["tokens"][:1, :5], BATCH["tokens"][:1, 5:]
    packed = forward(
        params,
        BATCH["tokens"][:1],
        cfg,
        positions_BT=jnp.asarray([[0, 1, 2, 3, 4, 0, 1, 2]], jnp.int32),
        segments_BT=jnp.asarray([[0] * 5 + [1] * 3], jnp.int32),
    )
    close(forward(params, first, cfg), packed[:, :5], 1e-5)
    close(forward(params, second, cfg), packed[:, 5:], 1e-5)


def test_weights_leave_tokens_out():
    cfg, params = tiny()
    weights = jnp.asarray(np.repeat([[1.0] * 4 + [0.0] * 4], 2, axis=0), jnp.float32)
    part = {k: v[:, :4] for k, v in BATCH.items()}
    close(loss(params, {**BATCH, "weights": weights}, cfg), loss(params, part, cfg), 1e-5)


def test_an_untrained_model_is_about_as_good_as_guessing():
    cfg, params = tiny()
    assert float(loss(params, BATCH, cfg)) == pytest.approx(np.log(64), abs=1.0)


# ---- MaxText's 2023 block ------------------------------------------------------------------------


def maxtext_2023() -> ModelConfig:
    """Non-gated ReLU MLP and head_dim 256, heads x head_dim = d_model, at a tiny size."""
    attention = Attention(kind="full", heads=2, kv_heads=2, head_dim=256, v_head_dim=256)
    mlp = Mlp(d_ff=64, gated=False)
    layer = Layer(mixer=attention, mlp=mlp, norms=("attention", "mlp"))
    cfg = ModelConfig(
        name="maxtext-2023",
        architecture="published",
        model_type="published",
        d_model=32,
        vocabulary=64,
        groups=(layer,),
        pattern=(0, 0),
        tied_embeddings=False,
        embedding_dim=32,
        embedding_rows=64,
    )
    return replace(cfg, numerics=plain(cfg))


def test_maxtext_2023_block():
    """Against the same block written in NumPy."""
    cfg = maxtext_2023()
    assert cfg.numerics.activation == "relu"
    params = initialise(cfg, jax.random.key(0))
    assert goldens.parameter_count(params) == params_text(cfg)
    tokens = np.asarray(BATCH["tokens"])
    got = forward(params, BATCH["tokens"], cfg)
    np.testing.assert_allclose(np.asarray(got), _numpy_2023(params, tokens), atol=1e-4)


def _numpy_2023(params, tokens):
    p = jax.tree.map(np.asarray, params)
    x, T, H = p["embedding"][tokens], tokens.shape[1], 256
    angles = np.arange(T)[:, None] / 10_000 ** (np.arange(0, H, 2) / H)
    cos, sin = np.cos(angles)[None, :, None], np.sin(angles)[None, :, None]

    def rms(v):
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-6)

    def turn(v):
        a, b = v[..., : H // 2], v[..., H // 2 :]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    for i in range(2):
        w = {name: value[i] for name, value in p["layers"][0].items()}
        q, k, v = (np.einsum("btd,dnh->btnh", rms(x), w[f"attention.{n}"]) for n in "qkv")
        scores = np.einsum("btnh,bsnh->bnts", turn(q), turn(k)) / np.sqrt(H)
        scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("bnts,bsnh->btnh", weights, v)
        x = x + np.einsum("btnh,nhd->btd", mixed, w["attention.o"])
        x = x + np.maximum(rms(x) @ w["mlp.up"], 0) @ w["mlp.down"]
    return rms(x) @ p["lm_head"]


# ---- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nemotron-h-56b", "model type 'nemotron_h'"),
        ("phi-3.5-mini", "rope_scaling is 'longrope'"),
        ("opt-350m", "do_layer_norm_before is False"),
    ],
)
def test_what_cannot_run_is_refused_by_name(name, why):
    cfg = load_model(name)
    with pytest.raises(BadRequest, match=f"model '{name}' cannot be run: .*{why}"):
        forward({}, BATCH["tokens"], cfg)


def test_more_tokens_than_learned_positions_are_refused():
    cfg, params = tiny("gpt2")
    with pytest.raises(BadRequest, match="65 tokens are more than the 64 learned positions"):
        forward(params, jnp.zeros((1, 65), jnp.int32), cfg)
    with pytest.raises(BadRequest, match="cache of 70 tokens"):
        generate(params, jnp.zeros((1, 60), jnp.int32), cfg, 10)


@pytest.mark.slow
def test_numbers_of_the_config_matter(tmp_path):
    """Each numeric that a golden model sets changes its logits, so parity does test it."""
    for name, change in [
        ("gemma2", {"attention_softcap": None}),
        ("gemma2", {"logits_softcap": None}),
        ("gemma2", {"attention_scale": 0.25}),
        ("granite", {"residual_scale": 1.0}),
        ("deepseek-v3", {"attention_scale": 12**-0.5}),
    ]:
        cfg = goldens.config(name)
        goldens.write_checkpoint(cfg, tmp_path)
        params = load(tmp_path, cfg)
        other = replace(cfg, numerics=replace(cfg.numerics, **change))
        tokens = jnp.asarray(goldens.document(name)["prompt"], jnp.int32)
        got = np.asarray(forward(params, tokens, other))
        assert np.abs(got - goldens.logits(name)).max() > 1e-3, (name, change)
