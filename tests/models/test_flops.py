"""FLOPs against brute-force masks, closed formulas and the book's rules."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.models import load_model, params_active, params_by_component, params_total
from shardwise.models.config import ModelConfig
from shardwise.models.contraction import Contraction
from shardwise.models.flops import (
    attention_crossover,
    attention_flops_per_token,
    attention_over_matmul,
    flops_by_component,
    flops_by_op,
    forward_flops_per_token,
    keys_seen,
    model_flops_per_token,
    scan_flops_per_token,
    six_nd,
)
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    DeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Lightning,
    Mamba,
    Mlp,
    ShortConv,
)

FULL = Attention(kind="full", heads=8, kv_heads=2, head_dim=64, v_head_dim=64)
WINDOW = replace(FULL, kind="window", window=100)
CHUNK = replace(FULL, kind="chunk", window=100)
LATENT = LatentAttention(
    heads=16, q_lora_rank=96, kv_lora_rank=32, nope_head_dim=16, rope_head_dim=8, v_head_dim=12
)


def layer(mixer, **fields):
    return Layer(mixer=mixer, mlp=Mlp(d_ff=64), norms=("attention", "mlp"), **fields)


def with_groups(cfg: ModelConfig, *groups: Layer) -> ModelConfig:
    return replace(cfg, groups=groups, pattern=tuple(range(len(groups))))


@given(context=st.integers(1, 700), limit=st.integers(1, 300))
def test_causal_keys_are_the_area_under_the_mask(context, limit):
    """Half a key per query off the exact count of a mask with its diagonal, whatever the window."""
    rows = np.arange(context)
    window = np.minimum(rows + 1, limit).mean()
    got = keys_seen(layer(replace(WINDOW, window=limit)), context)
    assert got == pytest.approx(window, abs=0.5 + 1e-9)
    chunk = (rows % limit + 1).mean()
    got = keys_seen(layer(replace(CHUNK, window=limit)), context)
    assert got == pytest.approx(chunk, abs=0.5 + 1e-9)


@pytest.mark.parametrize(
    ("mixer", "keys", "causal_keys"),
    [
        (FULL, 1000, 500),
        (WINDOW, 100, 95),
        (CHUNK, 100, 50),
        (replace(FULL, kind="cross"), 0, 0),
        (LATENT, 1000, 500),
        (replace(LATENT, sparse_top_k=200), 200, 180),
    ],
)
def test_keys_seen(mixer, keys, causal_keys):
    assert keys_seen(layer(mixer), 1000, causal=False) == keys
    assert keys_seen(layer(mixer), 1000, causal=True) == causal_keys


def test_a_window_longer_than_the_context_is_full_attention():
    wide = layer(replace(WINDOW, window=4096))
    assert keys_seen(wide, 1000) == keys_seen(layer(FULL), 1000)


def test_keys_seen_broadcasts_over_contexts():
    context = np.array([50, 100, 1000])
    assert keys_seen(layer(WINDOW), context, causal=False).tolist() == [50, 100, 100]
    assert attention_flops_per_token(layer(FULL), context).shape == (3,)


def test_attention_flops_are_two_products_of_every_head():
    assert attention_flops_per_token(layer(FULL), 1000, causal=False) == 4 * 8 * 64 * 1000
    latent = attention_flops_per_token(layer(LATENT), 1000, causal=False)
    assert latent == 2 * 16 * (24 + 12) * 1000


def test_latent_attention_absorbed_meets_the_latent():
    got = attention_flops_per_token(layer(LATENT), 1000, causal=False, absorbed=True)
    assert got == 2 * 16 * ((32 + 8) + 32) * 1000


def test_an_indexer_scores_every_entry_and_caps_the_keys():
    indexer = Indexer(heads=4, head_dim=16, top_k=200)
    chosen = layer(replace(LATENT, indexer=indexer, sparse_top_k=200))
    got = attention_flops_per_token(chosen, 1000, causal=False)
    assert got == 2 * 16 * 36 * 200 + 2 * 4 * 16 * 1000


def test_compressed_attention_sees_window_and_entries():
    mixer = CompressedAttention(
        heads=8,
        head_dim=64,
        rope_head_dim=16,
        q_lora_rank=128,
        window=100,
        ratio=4,
        o_groups=2,
        o_lora_rank=32,
    )
    assert keys_seen(layer(mixer), 1000, causal=False) == 100 + 250
    windowed = replace(mixer, ratio=0)
    assert keys_seen(layer(windowed), 1000, causal=False) == 100
    indexed = replace(mixer, indexer=Indexer(heads=4, head_dim=16, top_k=50, ratio=4))
    assert keys_seen(layer(indexed), 1000, causal=False) == 100 + 50
    scores = 2 * 8 * 128 * 150 + 2 * 4 * 16 * 250
    assert attention_flops_per_token(layer(indexed), 1000, causal=False) == scores


def test_scans_cost_the_same_at_any_context():
    mamba = Mamba(
        heads=4, head_dim=8, groups=2, state=16, conv_width=4, conv_bias=True, proj_bias=False
    )
    assert scan_flops_per_token(layer(mamba)) == 5 * 4 * 8 * 16 + 2 * (32 + 64) * 4
    delta = DeltaNet(key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=16, conv_width=4)
    assert scan_flops_per_token(layer(delta)) == 7 * 4 * 8 * 16 + 2 * (32 + 64) * 4
    assert scan_flops_per_token(layer(Lightning(heads=4, head_dim=8))) == 5 * 4 * 64
    assert scan_flops_per_token(layer(ShortConv(width=32, conv_width=3, bias=False))) == 2 * 32 * 3
    assert attention_flops_per_token(layer(mamba), 4096) == 0
    assert scan_flops_per_token(layer(FULL)) == 0


def test_llama_3_70b_by_the_books_formulas():
    cfg = load_model("llama-3-70b")
    D, F, N, K, H, L, V, T = 8192, 28672, 64, 8, 128, 80, 128256, 8192
    by = flops_by_component(cfg, T, causal=False)
    assert 3 * by["mlp_dense"] == 18 * D * F * L
    assert 3 * by["attention"] == 12 * D * (N + K) * H * L
    assert 3 * by["attention_core"] == 12 * T * N * H * L
    assert 3 * by["lm_head"] == 6 * D * V
    assert flops_by_component(cfg, T)["attention_core"] == by["attention_core"] / 2


def test_training_is_three_times_forward():
    cfg = load_model("llama-3-8b")
    for op in flops_by_op(cfg, 8192):
        assert op.backward == 2 * op.forward
        assert op.training == op.forward + op.backward


def test_model_flops_of_a_dense_model():
    """6 x (all parameters less the embedding) plus 6 T N H L for the causal half."""
    cfg = load_model("llama-3-70b")
    embedding = params_by_component(cfg)["embedding"]
    want = 6 * (params_total(cfg) - embedding) + 6 * 8192 * 64 * 128 * 80
    assert model_flops_per_token(cfg, 8192) == pytest.approx(want, rel=1e-12)


def test_model_flops_of_experts_count_those_chosen():
    cfg = load_model("mixtral-8x7b")
    embedding = params_by_component(cfg)["embedding"]
    attention = 6 * 8192 * 32 * 128 * 32
    want = 6 * (params_active(cfg) - embedding) + attention
    assert model_flops_per_token(cfg, 8192) == pytest.approx(want, rel=1e-12)


def test_a_tied_head_still_multiplies():
    cfg = load_model("llama-3.2-1b")
    assert cfg.tied_embeddings
    untied = replace(cfg, tied_embeddings=False)
    assert model_flops_per_token(cfg, 4096) == model_flops_per_token(untied, 4096)


def test_model_flops_equal_the_ops_but_for_norms_and_biases():
    for name in ("llama-3-8b", "deepseek-v3", "qwen3-next-80b-a3b", "nemotron-h-56b", "gemma-2-9b"):
        cfg = load_model(name)
        ops = 3 * forward_flops_per_token(cfg, 8192)
        assert ops == pytest.approx(model_flops_per_token(cfg, 8192), rel=3e-4), name


def test_towers_cost_nothing_here():
    cfg = load_model("qwen3-vl-8b")
    assert model_flops_per_token(cfg, 4096) == model_flops_per_token(replace(cfg, towers=()), 4096)


def test_doubling_the_layers_doubles_the_layers_flops():
    cfg = load_model("llama-3-8b")
    double = replace(cfg, pattern=cfg.pattern * 2)
    once, twice = flops_by_component(cfg, 8192), flops_by_component(double, 8192)
    assert {k for k in once if once[k] == twice[k]} == {"lm_head"}
    assert all(twice[k] == 2 * once[k] for k in once if k != "lm_head")


def test_ratio_and_crossover_agree():
    cfg = load_model("llama-3-8b")
    context = attention_crossover(cfg, causal=True)
    assert attention_over_matmul(cfg, context, causal=True) >= 1
    assert attention_over_matmul(cfg, context - 1, causal=True) < 1
    assert context == 2 * attention_crossover(cfg, causal=False)


def test_windows_may_keep_attention_cheap_for_ever():
    cfg = with_groups(load_model("llama-3-8b"), layer(WINDOW))
    assert attention_crossover(cfg) == math.inf


def test_six_nd():
    assert six_nd(70e9, 15e12) == 6.3e24


def test_contraction_letters():
    c = Contraction.parse("GHIJKL, GHMNKL -> GHIJMN")
    assert (c.batching, c.contracting) == ("GH", "KL")
    sizes = dict.fromkeys("GHIJKLMN", 2)
    assert c.flops(sizes) == 2 * 2**8
    assert c.training_flops(sizes) == 6 * 2**8


def test_an_elementwise_product_has_no_factor_two():
    c = Contraction.parse("BF,BF->BF")
    assert c.flops({"B": 3, "F": 5}) == 15


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NP->N", "must name two operands"),
        ("NN,NP->P", "uses dim 'N' twice in 'NN'"),
        ("NP,PM->N", "dim 'M' is in one operand only"),
        ("NP,PM->NMQ", "dim 'Q' is in the result but in no operand"),
    ],
)
def test_bad_contractions(text, message):
    with pytest.raises(BadRequest, match=message):
        Contraction.parse(text)


def test_a_contraction_needs_every_size():
    with pytest.raises(BadRequest, match=r"no size for dim 'M' of NP,PM->NM"):
        Contraction.parse("NP,PM->NM").flops({"N": 1, "P": 1})


def test_weights_that_are_not_trained_count_four_instead_of_six():
    """Beside adapters the products of weight gradients fall away, so no plan is above its peak."""
    cfg = load_model("llama-3-8b")
    whole = model_flops_per_token(cfg, 0)
    none = model_flops_per_token(cfg, 0, trained=lambda component: False)
    assert none == pytest.approx(whole * 4 / 6)
    some = model_flops_per_token(cfg, 0, trained=lambda component: component != "lm_head")
    assert none < some < whole
