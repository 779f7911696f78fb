"""Our kernel of pages, interpreted, beside the loop over blocks that XLA runs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tiers import spread

from shardwise.runtime.attention.paged import NOWHERE, PagedKeys, Paging, paged_attention
from shardwise.runtime.attention.paged_softmax import queries_at_once, side_by_side
from shardwise.runtime.attention.scoring import Scoring

LAYERS, PAGES, SIZE, WIDTH, LAYER, BLOCK = 2, 24, 64, 12, 1, 16
SMALL, MANY = 16, 48
"""Pages of fewer places than a block has, and how many of a sequence."""
PLACES = {
    "rows": [700, 0, NOWHERE, 63],
    "blocks": [[*range(600, 616)], [*range(5), *([NOWHERE] * 11)], [NOWHERE] * 16],
}


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def step(reader, each=1, size=SIZE, width=WIDTH):
    """Rows that decode, `each` with as many guesses, and blocks of prompts; pages may be shared."""
    rng = np.random.default_rng(0)
    rows = [[p + i if p != NOWHERE else NOWHERE for i in range(each)] for p in PLACES["rows"]]
    positions = [p for row in (*rows, *PLACES["blocks"]) for p in row]
    tables = jnp.asarray(rng.integers(0, PAGES, (7, width)), jnp.int32)
    starts = jnp.asarray([block[0] for block in PLACES["blocks"]], jnp.int32)
    paging = Paging(tables[:4], tables[4:], starts, size, each=each, reader=reader)
    return paging, jnp.asarray(positions, jnp.int32)


def attention(reader, K, G, H, U, *, cache="f32", each=1, size=SIZE, width=WIDTH, **named):
    paging, positions = step(reader, each, size, width)
    scoring = Scoring(
        **{"scale": 0.1, "softcap": None, "window": None, "chunk": None, **named},
        q_positions_BT=positions[None],
        k_positions_BS=positions[None],
    )
    q = normal(9, 1, len(positions), K * G, H)
    held = []
    for seed, width in ((1, H), (2, U)):
        array, scales = normal(seed, LAYERS, PAGES, size, K * width), None
        if cache == "int8":
            array = jnp.clip(jnp.round(array * 40), -127, 127).astype(jnp.int8)
            scales = jnp.abs(normal(seed + 5, LAYERS, PAGES, K, size)).astype(jnp.bfloat16) / 40
        if cache == "bf16":
            array = array.astype(jnp.bfloat16)
        held.append(PagedKeys(array, scales, LAYER, K, width, paging))
    if cache == "paired":  # each head's key and then its value
        shape = (LAYERS, PAGES, size, K)
        both = [part.array_LPSX.reshape(*shape, part.width) for part in held]
        pair = jnp.concatenate(both, axis=-1).reshape(*shape[:3], -1)
        pair = jnp.pad(pair, ((0, 0),) * 3 + ((0, -pair.shape[-1] % 128),))
        held = [replace(part, array_LPSX=pair, whole=H + U) for part in held]
        held[1] = replace(held[1], after=H)
    if cache == "latent":
        held[1] = replace(held[0], width=U)
    if cache == "bf16":
        q = q.astype(jnp.bfloat16)
    out = jax.jit(lambda q: paged_attention(q, held[0], held[1], scoring))(q)[0]
    return np.asarray(out.astype(jnp.float32))[np.asarray(positions) != NOWHERE]


@pytest.mark.parametrize("reader", ["interpreted", "triton interpreted"])
@pytest.mark.parametrize(
    ("shape", "named"),
    spread(
        [
            ((4, 2, 64, 64), {}),
            ((4, 1, 80, 80), {"window": 100}),
            ((2, 2, 96, 32), {"chunk": 128}),
            ((1, 4, 128, 128), {"softcap": 3.0, "each": 3}),
            ((3, 1, 64, 64), {"cache": "int8", "window": 40}),
            ((1, 4, 160, 128), {"cache": "latent"}),
            ((2, 3, 256, 256), {"cache": "bf16", "sinks_N": normal(7, 6)}),
        ],
        quick=[3],
        slow=[5, 6],
        rows=True,
    ),
    ids=str,
)
def test_the_kernels_say_what_the_loop_says(reader, shape, named):
    """Of narrow and wide heads, alone and side by side, with all that a layer may ask for."""
    said, wanted = (attention(which, *shape, **named) for which in (reader, "loop"))
    near = 2e-2 if named.get("cache") == "bf16" else 2e-5
    np.testing.assert_allclose(said, wanted, rtol=near, atol=near)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ((4, 2, 64, 64), {"window": 40}),
        ((1, 5, 80, 96), {"each": 3}),
        ((3, 1, 64, 64), {"cache": "int8"}),
    ],
    ids=str,
)
def test_the_kernel_of_gpus_reads_pages_of_fewer_places_than_a_block(shape, named):
    said, wanted = (
        attention(which, *shape, size=SMALL, width=MANY, **named)
        for which in ("triton interpreted", "loop")
    )
    np.testing.assert_allclose(said, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("reader", ["interpreted", "loop"])
@pytest.mark.parametrize(
    "shape", spread([(1, 4, 64, 64), (4, 1, 80, 80), (3, 2, 96, 32)], slow=1), ids=str
)
def test_keys_and_values_in_one_array_are_those_of_two(shape, reader):
    said = attention(reader, *shape, cache="paired", window=100)
    np.testing.assert_allclose(said, attention("loop", *shape, window=100), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("K", "widths", "heads"),
    [(8, (64, 64), 2), (8, (80, 80), 8), (10, (128, 128), 1), (3, (64, 64), 3), (1, (576, 512), 1)],
)
def test_as_many_heads_as_end_on_a_tile_are_multiplied_at_once(K, widths, heads):
    assert side_by_side(K, widths) == heads


def test_a_block_of_a_prompt_is_split_until_it_fits():
    assert queries_at_once((1, 16, 8, 1, 128), 128, 512) == 16
    assert queries_at_once((1, 16, 1, 128, 576), 576, 512) == 2
