"""Ring attention by the Pallas kernel, interpreted: rows dealt in zig-zag equal the reference."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardwise.runtime.attention import dense_attention, from_zigzag, to_zigzag
from shardwise.runtime.attention.ring_kernel import ring_kernel_attention, ring_kernel_serves
from shardwise.runtime.attention.scoring import Scoring

B, N, K, H = 1, 2, 1, 64


def scoring_of(positions_BT, **choices):
    given = {"scale": H**-0.5, "softcap": None, "window": None, "chunk": None, **choices}
    return Scoring(q_positions_BT=positions_BT, k_positions_BS=positions_BT, **given)


def dealt_ring(places, softcap):
    """Attention of a whole row in order, dealt over `places` devices and back."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:places]), ("context",))
    cut = P(None, "context")

    def kernel(q, k, v):
        positions = jnp.broadcast_to(jnp.arange(q.shape[1]), q.shape[:2])
        given = [to_zigzag(x, places) for x in (q, k, v, positions)]
        inside = jax.shard_map(
            lambda q, k, v, at: ring_kernel_attention(
                q, k, v, scoring_of(at, softcap=softcap), axis="context", interpret=True
            ),
            mesh=mesh,
            in_specs=(cut,) * 4,
            out_specs=cut,
            check_vma=False,
        )
        return from_zigzag(inside(*given), places)

    return kernel


def values_and_gradients(kernel, q, k, v, weights):
    out, pull = jax.vjp(kernel, q, k, v)
    return out, *pull(weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "softcap"),
    [(2, None), pytest.param(4, 3.0, marks=pytest.mark.slow)],
)
def test_equals_dense(places, softcap):
    T = 2 * 128 * places
    keys = jax.random.split(jax.random.key(places), 4)
    q, k, v, weights = (
        jax.random.normal(key, (B, T, heads, H), jnp.float32)
        for key, heads in zip(keys, (N, K, K, N), strict=True)
    )
    positions = jnp.broadcast_to(jnp.arange(T), (B, T))
    scoring = scoring_of(positions, softcap=softcap)
    want = values_and_gradients(partial(dense_attention, scoring=scoring), q, k, v, weights)
    got = jax.jit(partial(values_and_gradients, dealt_ring(places, softcap)))(q, k, v, weights)
    for one, other in zip(got, want, strict=True):
        assert float(jnp.abs(one - other).max()) < 2e-4 * float(jnp.abs(other).max())


def test_serves_what_tokens_alone_decide():
    positions = jnp.zeros((1, 256), jnp.int32)
    q = jnp.zeros((1, 256, N, H))
    assert ring_kernel_serves(q, scoring_of(positions))
    assert not ring_kernel_serves(q[:, :128], scoring_of(positions))
    for more in ({"window": 8}, {"chunk": 8}, {"in_order": True}, {"q_segments_BT": positions}):
        assert not ring_kernel_serves(q, scoring_of(positions, **more))
