"""The Pallas kernel, interpreted, of rows whose tokens are cut equals the reference."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec as P

from shardwise.runtime.attention import dense_attention, from_zigzag, to_zigzag, zigzag_order
from shardwise.runtime.attention.all_gather import splash_gathered
from shardwise.runtime.attention.scoring import Scoring
from shardwise.runtime.attention.splash import CutRows, RowMask

B, N, K, H = 2, 2, 1, 64


def scoring_of(positions_BT, **choices):
    given = {"scale": H**-0.5, "softcap": None, "window": None, "chunk": None, **choices}
    return Scoring(q_positions_BT=positions_BT, k_positions_BS=positions_BT, **given)


def cut_over(places, dealt, segments, **choices):
    """Attention of whole rows in order, their tokens cut over devices and put together again."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:places]), ("context",))
    tokens, cut = P(None, "context"), CutRows("context", dealt)

    def inside(q, k, v, at, ids):
        packed = {} if segments is None else {"q_segments_BT": ids, "k_segments_BS": ids}
        scoring = scoring_of(at, in_order=not dealt, **packed, **choices)
        return splash_gathered(q, k, v, scoring, cut=cut, interpret=True)

    def kernel(q, k, v):
        positions = jnp.broadcast_to(jnp.arange(q.shape[1]), q.shape[:2])
        given = [q, k, v, positions, positions if segments is None else segments]
        given = [to_zigzag(x, places) for x in given] if dealt else given
        out = jax.shard_map(
            inside, mesh=mesh, in_specs=(tokens,) * 5, out_specs=tokens, check_vma=False
        )(*given)
        return from_zigzag(out, places) if dealt else out

    return kernel


def values_and_gradients(kernel, q, k, v, weights):
    out, pull = jax.vjp(kernel, q, k, v)
    return out, *pull(weights)


SLOW, LONG = pytest.mark.slow, pytest.mark.long
CASES = [
    pytest.param(2, True, {}, id="dealt", marks=SLOW),
    pytest.param(2, False, {"window": 150}, id="a window in order"),
    pytest.param(2, True, {"chunk": 256}, id="chunks dealt", marks=LONG),
    pytest.param(2, True, {"segments": (100, 412)}, id="dealt and packed", marks=SLOW),
    pytest.param(4, True, {"softcap": 3.0}, id="dealt over four", marks=LONG),
    pytest.param(4, False, {"window": 300}, id="a window over four", marks=LONG),
]


@pytest.mark.parametrize(("places", "dealt", "choices"), CASES)
def test_equals_dense(places, dealt, choices):
    T, choices = 256 * places, dict(choices)
    keys = jax.random.split(jax.random.key(places), 4)
    q, k, v, weights = (
        jax.random.normal(key, (B, T, heads, H), jnp.float32)
        for key, heads in zip(keys, (N, K, K, N), strict=True)
    )
    positions = jnp.broadcast_to(jnp.arange(T), (B, T))
    lengths, segments, packed = choices.pop("segments", None), None, {}
    if lengths:
        segments = jnp.broadcast_to(jnp.repeat(jnp.arange(2), jnp.array(lengths)), (B, T))
        packed = {"q_segments_BT": segments, "k_segments_BS": segments}
    scoring = scoring_of(positions, **choices, **packed)
    want = values_and_gradients(partial(dense_attention, scoring=scoring), q, k, v, weights)
    kernel = cut_over(places, dealt, segments, **choices)
    got = jax.jit(partial(values_and_gradients, kernel))(q, k, v, weights)
    for one, other in zip(got, want, strict=True):
        assert float(jnp.abs(one - other).max()) < 2e-4 * float(jnp.abs(other).max())


def blocks_of(T, size):
    blocks = [slice(i, i + size) for i in range(0, T, size)]
    return [(q, k) for q in blocks for k in blocks]


def masks_of(window, chunk, dealt):
    """Ours and JAX's of 2,048 tokens."""
    T, reach = 2048, None if window is None else window - 1
    theirs = (
        masks.ChunkedCausalMask((T, T), chunk) if chunk else masks.LocalMask((T, T), (reach, 0), 0)
    )
    ours = RowMask(T, window, chunk)
    if dealt:
        ours.q_sequence = theirs.q_sequence = zigzag_order(T, 4).astype("int32")
    return ours, theirs


@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize(
    ("window", "chunk"), [(None, None), (301, None), (512, None), (2001, None), (None, 512)]
)
def test_blocks_answered_by_their_corners_are_those_of_jax(window, chunk, dealt):
    (ours, theirs), kinds = masks_of(window, chunk, dealt), set()
    for block in blocks_of(2048, 256):
        one, other = ours[block], theirs[block]
        assert np.array_equal(np.broadcast_to(one, other.shape), other)
        kinds.add(one.shape)
    assert kinds == {(1, 1), (256, 256)}


def test_masks_are_equal_where_they_see_the_same():
    """What JAX makes of a mask it keeps for equal ones."""
    given = [(512, None, None), (512, 64, None), (512, None, 128), (512, None, 256)]
    masks_of_rows = [RowMask(*one) for one in given]
    assert len({*masks_of_rows, *(RowMask(*one) for one in given)}) == len(given)
