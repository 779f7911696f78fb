"""Flash attention equals the dense reference, values and gradients, in memory linear in T."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime.attention import cases

from shardwise.errors import BadRequest
from shardwise.runtime.attention import (
    attention_on,
    best,
    best_attention,
    dense_attention,
    flash_attention,
)
from shardwise.runtime.attention.best import (
    cudnn_head_dim,
    cudnn_serves,
)
from shardwise.runtime.attention.splash import splash, splash_serves

# 50 tokens leave the last tile of either kind incomplete.
B, T, N, K, H, U = 2, 50, 6, 2, 8, 12
flash = partial(flash_attention, block_T=16, block_S=8)


ALONE = ("window", "window in order", "soft cap", "sinks", "packed", "packed in order")
"""Features that "all" has together."""


@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ALONE else ())
        for name in cases.FEATURES
    ],
)
def test_equals_dense_in_64_bits(feature):
    with jax.enable_x64(True):
        arrays = cases.inputs(B, T, N, K, H, U, np.float64)
        scoring = cases.scoring_for(feature, B, T, N)
        want = cases.reference(arrays, scoring)
        got = cases.values_and_gradients(flash, arrays, scoring)
        assert got[0].dtype == jnp.float64
        assert cases.difference(got, want) < 1e-13


@pytest.mark.parametrize("feature", ["causal", "all", "blind rows"])
def test_equals_dense_in_32_bits(feature):
    arrays = cases.inputs(B, T, N, K, H, U)
    scoring = cases.scoring_for(feature, B, T, N)
    want = cases.reference(arrays, scoring)
    assert cases.difference(cases.values_and_gradients(flash, arrays, scoring), want) < 1e-5


def test_16_bits_come_out_in_16_and_are_summed_in_32():
    arrays = [x.astype(jnp.bfloat16) for x in cases.inputs(B, T, N, K, H, U)]
    scoring = cases.scoring_for("causal", B, T, N)
    exact = [x.astype(jnp.float32) for x in arrays]
    want = cases.reference(exact, scoring)
    got = cases.values_and_gradients(flash, arrays, scoring)
    assert {x.dtype for x in got} == {jnp.dtype(jnp.bfloat16)}
    wide = [x.astype(jnp.float32) for x in got]
    assert cases.difference(wide, want) < 2**-8 * 2  # bf16 rounds to 2^-9 each way, a few times


def test_scores_far_from_zero_neither_overflow_nor_lose_the_sum():
    arrays = cases.inputs(B, T, N, K, H, U)
    scoring = replace(cases.scoring_for("causal", B, T, N), scale=300.0)
    want = cases.reference(arrays, scoring)
    got = cases.values_and_gradients(flash, arrays, scoring)
    assert all(np.isfinite(x).all() for x in got)
    assert cases.difference(got, want) < 1e-4


def test_a_query_that_sees_nothing_gets_zero():
    scoring = cases.scoring_for("blind rows", B, T, N)
    out, *gradients = cases.values_and_gradients(flash, cases.inputs(B, T, N, K, H, U), scoring)
    assert (out[:, : T // 3] == 0).all()
    assert (out[:, T // 3 :] != 0).all()
    assert (gradients[0][:, : T // 3] == 0).all()


class TestTiles:
    def count(self, feature, block, T=64, **changes):
        scoring = replace(cases.scoring_for(feature, 1, T, 1), **changes)
        return int(cases.count_tiles(scoring, block_T=block, block_S=block))

    def test_causal_is_the_triangle(self):
        # 8 blocks: 8 x 9 / 2
        assert self.count("in order", 8) == self.count("causal", 8) == 36

    def test_a_window_is_a_band(self):
        # A query sees 8 keys: those of its own block and of the one before.
        for feature in ("in order", "causal"):
            assert self.count(feature, 8, window=8) == 8 + 7

    def test_a_chunk_is_a_block_of_the_diagonal(self):
        assert self.count("causal", 8, chunk=16) == 4 * 3

    def test_documents_are_blocks_of_the_diagonal(self):
        segments = jnp.asarray(np.arange(64)[None] // 32)
        packed = {"q_segments_BT": segments, "k_segments_BS": segments}
        assert self.count("causal", 8, **packed) == 2 * 10

    def test_everything_is_the_square(self):
        assert self.count("everything visible", 8) == 64

    def test_keys_after_every_query_are_not_touched(self):
        rows = jnp.arange(64)[None]
        assert self.count("causal", 8, k_positions_BS=rows + 64) == 0


def test_memory_is_linear_where_dense_is_quadratic():
    def temp_bytes(kernel, tokens):
        def loss(q, k, v, positions):
            scoring = replace(
                cases.scoring_for("in order", 1, 8, 2),
                q_positions_BT=positions,
                k_positions_BS=positions,
            )
            return kernel(q, k, v, scoring).sum()

        f32 = jnp.float32
        q = jax.ShapeDtypeStruct((1, tokens, 2, 16), f32)
        k = jax.ShapeDtypeStruct((1, tokens, 1, 16), f32)
        positions = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, k, positions).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    kernel = partial(flash_attention, block_T=64, block_S=64)
    flash = [temp_bytes(kernel, tokens) for tokens in (2048, 4096, 8192)]
    dense = [temp_bytes(dense_attention, tokens) for tokens in (2048, 4096)]
    # a + b T at most doubles with T; a quadratic term would make it four times as much.
    assert flash[1] <= 2 * 1.02 * flash[0]
    assert flash[2] <= 2 * 1.02 * flash[1]
    assert flash[2] < 100 * 2 * 16 * 4 * 8192
    assert dense[1] > 3.9 * dense[0]
    assert dense[0] > 2 * 2048**2 * 4


class TestBest:
    def test_every_cpu_gets_flash(self):
        arrays = cases.inputs(B, T, N, K, H, U)
        scoring = cases.scoring_for("window in order", B, T, N)
        want = dense_attention(*arrays[:3], scoring)
        assert cases.difference([best_attention(*arrays[:3], scoring)], [want]) < 1e-5

    def test_what_cudnn_lacks_is_not_asked_of_it(self):
        q, _, v, _ = (x.astype(jnp.bfloat16) for x in cases.inputs(1, 16, 4, 2, 64, 64))
        serves = {
            feature
            for feature in cases.FEATURES
            if cudnn_serves(q, v, cases.scoring_for(feature, 1, 16, 4), 128)
        }
        assert serves == {"in order", "window in order"}
        plain = cases.scoring_for("in order", 1, 16, 4)
        assert not cudnn_serves(q.astype(jnp.float32), v, plain, 128)
        assert not cudnn_serves(q, v[..., :32], plain, 128)
        assert not cudnn_serves(q, v, plain, 32)

    def test_cudnn_is_chosen_by_the_devices_of_the_program(self, monkeypatch):
        """Which need not be here: a device of a topology says what it computes on."""
        asked = []
        monkeypatch.setattr(best, "_cudnn", lambda *given: asked.append(given) or given[0])
        arrays = [x.astype(jnp.bfloat16) for x in cases.inputs(1, 16, 4, 2, 64, 64)[:3]]
        plain = cases.scoring_for("in order", 1, 16, 4)
        for capability, width in (("9.0", 256), ("10.0", 128), ("8.0", 128), ("7.5", 0)):
            device = SimpleNamespace(platform="gpu", compute_capability=capability)
            assert cudnn_head_dim(device) == width
            attention_on(*arrays, plain, platform="gpu", cudnn=cudnn_head_dim(device))
        assert len(asked) == 3
        assert cudnn_head_dim(jax.devices()[0]) == 0

    @pytest.mark.slow
    def test_the_pallas_kernel_equals_dense(self):
        arrays = cases.inputs(1, 128, 2, 1, 64, 32)
        scoring = cases.scoring_for("all", 1, 128, 2)
        assert splash_serves(arrays[0], scoring)
        want = cases.reference(arrays, scoring)
        kernel = partial(splash, interpret=True)
        assert cases.difference(cases.values_and_gradients(kernel, arrays, scoring), want) < 1e-5

    def test_an_unknown_platform_is_named(self):
        arrays = cases.inputs(B, T, N, K, H, U)
        with pytest.raises(BadRequest, match="platform 'cuda'"):
            attention_on(*arrays[:3], cases.scoring_for("causal", B, T, N), platform="cuda")
