"""Attention over cut tokens equals the dense reference on the whole, values and gradients."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.profiler.overlap import read_overlaps
from tests.runtime.attention import cases
from tests.tiers import spread

from kept import hlo
from shardwise.errors import BadRequest
from shardwise.profiler.hlo import read_collectives
from shardwise.runtime.attention import (
    all_gather_attention,
    flash_attention,
    from_zigzag,
    ring_attention,
    to_zigzag,
    ulysses_attention,
    zigzag_order,
)

AXES = ("data", "context", "tensor")
B, T, N, K, H, U = 2, 32, 8, 4, 6, 4
flash = partial(flash_attention, block_T=4, block_S=8)
METHODS = {
    "ring": partial(ring_attention, block_T=4, block_S=8),
    "all_gather": partial(all_gather_attention, kernel=flash),
    "ulysses": partial(ulysses_attention, kernel=flash),
}
BY_TOKEN = ("q_positions_BT", "k_positions_BS", "q_segments_BT", "k_segments_BS")


def mesh_of(*degrees):
    devices = np.array(jax.devices()[: int(np.prod(degrees))])
    return jax.sharding.Mesh(devices.reshape(degrees), AXES)


def specs_of(scoring):
    """Tokens over data and context, sinks over tensor, as the heads are."""
    given = [name for name in BY_TOKEN if getattr(scoring, name) is not None]
    sinks = None if scoring.sinks_N is None else P("tensor")
    return replace(scoring, sinks_N=sinks, **dict.fromkeys(given, P("data", "context")))


def sharded(method, mesh, heads="tensor", kv_heads="tensor", **options):
    """A kernel on whole arrays that runs a method inside `shard_map`."""
    q_spec, kv_spec = (P("data", "context", axis) for axis in (heads, kv_heads))

    def kernel(q, k, v, scoring):
        inside = jax.shard_map(
            partial(METHODS[method], axis="context"),
            mesh=mesh,
            in_specs=(q_spec, kv_spec, kv_spec, specs_of(scoring)),
            out_specs=q_spec,
            **options,
        )
        return inside(q, k, v, scoring)

    return kernel


def check(kernel, scoring, K=K, dtype=np.float32, limit=1e-5):
    arrays = cases.inputs(B, T, N, K, H, U, dtype)
    want = cases.reference(arrays, scoring)
    got = cases.values_and_gradients(kernel, arrays, scoring)
    assert cases.difference(got, want) < limit


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "feature", spread(["causal", "all", "window in order", "blind rows"], slow=1)
)
def test_equals_dense(method, feature):
    check(sharded(method, mesh_of(1, 4, 2)), cases.scoring_for(feature, B, T, N))


@pytest.mark.parametrize("method", spread(METHODS, quick=0, slow=1))
def test_equals_dense_in_64_bits_over_8_places(method):
    with jax.enable_x64(True):
        scoring = cases.scoring_for("all", B, T, N)
        check(sharded(method, mesh_of(1, 8, 1)), scoring, dtype=np.float64, limit=1e-13)


def test_a_ring_of_one_is_attention_itself():
    check(sharded("ring", mesh_of(2, 1, 2)), cases.scoring_for("all", B, T, N))


@pytest.mark.parametrize("method", spread(METHODS, quick=[1], slow=2))
def test_keys_that_the_tensor_axis_does_not_cut_get_the_sum_of_its_gradients(method):
    # One KV head, on both places of tensor; Ulysses sends it to all four places of context.
    kernel = sharded(method, mesh_of(1, 4, 2), kv_heads=None)
    check(kernel, cases.scoring_for("all", B, T, N), K=1)


@pytest.mark.parametrize("method", spread(METHODS, quick=0, slow=1))
def test_gradients_are_right_where_varying_is_not_checked(method):
    # JAX's Pallas and cuDNN kernels need `check_vma=False`.
    kernel = sharded(method, mesh_of(2, 2, 2), kv_heads=None, check_vma=False)
    check(kernel, cases.scoring_for("all", B, T, N), K=1)


@pytest.mark.parametrize("method", spread(METHODS, quick=0, slow=1))
def test_other_axes_may_be_left_to_the_compiler(method):
    mesh, spec = mesh_of(2, 2, 2), P(None, "context")

    def kernel(q, k, v, scoring):
        given = [name for name in BY_TOKEN if getattr(scoring, name) is not None]
        specs = replace(scoring, sinks_N=P(), **dict.fromkeys(given, spec))
        inside = jax.shard_map(
            partial(METHODS[method], axis="context"),
            mesh=mesh,
            axis_names={"context"},
            in_specs=(spec, spec, spec, specs),
            out_specs=spec,
        )
        whole = jax.NamedSharding(mesh, P("data", "context", "tensor"))
        return inside(*(jax.lax.with_sharding_constraint(x, whole) for x in (q, k, v)), scoring)

    check(kernel, cases.scoring_for("all", B, T, N))


def test_ulysses_copies_kv_heads_that_the_axis_does_not_divide():
    # lcm(2, 4) = 4 heads are sent, each twice.
    check(sharded("ulysses", mesh_of(1, 4, 1)), cases.scoring_for("all", B, T, N), K=2)


def test_ulysses_names_the_heads_it_cannot_deal():
    arrays = cases.inputs(B, T, 6, 2, H, U)
    kernel = sharded("ulysses", mesh_of(1, 4, 1))
    message = "6 query heads cannot be sharded by Ulysses; it must divide by the 4 devices"
    with pytest.raises(BadRequest, match=message):
        kernel(*arrays[:3], cases.scoring_for("causal", B, T, 6))


def test_a_window_in_order_stops_the_ring_early():
    def hops(feature, window):
        scoring = replace(cases.scoring_for(feature, B, T, N), window=window)
        kernel = sharded("ring", mesh_of(1, 8, 1))
        arrays = cases.inputs(B, T, N, K, H, U)[:3]
        return re.findall(r"length=(\d+)", str(jax.make_jaxpr(kernel)(*arrays, scoring)))

    # Blocks of 4 tokens: a window of 5 reaches into one block before, a window of 6 into two.
    assert hops("window in order", 5) == ["1"]
    assert hops("window in order", 6) == ["2"]
    assert hops("window", 5) == hops("in order", None) == ["7"]


class TestZigzag:
    def test_tokens_come_back(self):
        x = jnp.arange(48).reshape(2, 24)
        assert (from_zigzag(to_zigzag(x, 4), 4) == x).all()

    def test_rows_that_cannot_be_dealt_are_named(self):
        with pytest.raises(BadRequest, match=r"rows of 20 tokens .* must divide by 2 x 4 devices"):
            zigzag_order(20, 4)

    @pytest.mark.parametrize("method", spread(METHODS, quick=0, slow=1))
    def test_equals_dense(self, method):
        inside = sharded(method, mesh_of(1, 4, 2))

        def kernel(q, k, v, s):
            dealt = {n: to_zigzag(getattr(s, n), 4) for n in BY_TOKEN}
            dealt_scoring = replace(s, in_order=False, **dealt)
            return from_zigzag(inside(*(to_zigzag(x, 4) for x in (q, k, v)), dealt_scoring), 4)

        check(kernel, cases.scoring_for("all", B, T, N))

    def test_every_device_computes_the_same(self):
        order = zigzag_order(256, 4).reshape(4, 64)
        plain = np.arange(256).reshape(4, 64)
        scoring = cases.scoring_for("causal", 1, 256, 1)

        def tiles(rows, columns):
            positions = {
                "q_positions_BT": jnp.asarray(rows[None]),
                "k_positions_BS": jnp.asarray(columns[None]),
            }
            return int(cases.count_tiles(replace(scoring, **positions), block_T=8, block_S=8))

        def by_device(cut):
            return [sum(tiles(mine, theirs) for theirs in cut) for mine in cut]

        # 32 x 33 / 2 tiles in all. In order: 8 x 9 / 2, and 64 more with each block before.
        assert by_device(plain) == [36, 100, 164, 228]
        assert by_device(order) == [132] * 4


def test_a_tpu_attends_while_the_next_block_is_on_the_wire():
    compiled = hlo("ring_attention")  # scripts/kept_programs.py
    # A block of k, or of v, in bf16 is [1, 2048, 2, 128]; its gradient in f32 twice that.
    block = 2 * 2048 * 2 * 128
    overlaps = read_overlaps(compiled)
    assert len(overlaps) == len(read_collectives(compiled))
    hidden = [o.collective.bytes for o in overlaps if o.matmuls]
    # k, v and positions in the loop forward, before the one backward, and in it; dk and dv in the
    # loop and with the last block.
    assert sorted(hidden) == [4 * 2048] * 3 + [block] * 6 + [2 * block] * 4
    # Nothing is left to compute while dk and dv make their last hop, home.
    assert [o.collective.bytes for o in overlaps if not o.matmuls] == [block, block]
