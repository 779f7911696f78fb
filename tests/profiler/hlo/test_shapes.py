"""Layouts: dims, tiles and memory spaces; what tiles cost."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.profiler.hlo import MemoryLayout, read_shape


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", MemoryLayout((1, 0), ((8, 128), (2, 1)), 1)),
        ("f32[4]{0}", MemoryLayout((0,))),
        ("f32[]{:T(128)S(6)}", MemoryLayout((), ((128,),), 6)),
        ("s4[64,128]{1,0:T(8,128)(8,1)E(4)S(5)}", MemoryLayout((1, 0), ((8, 128), (8, 1)), 5)),
        ("f32[2,3]", MemoryLayout()),
    ],
)
def test_layouts(text, layout):
    assert read_shape(text).layout == layout


@pytest.mark.parametrize(
    ("text", "padded"),
    [
        ("bf16[100,200]{1,0:T(8,128)(2,1)}", 104 * 256 * 2),
        # The tile lies on the minor dims, which here are the first one's.
        ("f32[100,200]{0,1:T(8,128)}", 128 * 200 * 4),
        ("bf16[6,100,200]{2,1,0:T(8,128)(2,1)}", 6 * 104 * 256 * 2),
        ("bf16[300]{0:T(256)(128)(2,1)}", 512 * 2),
        ("f32[]{:T(128)}", 128 * 4),
        ("s8[10,10]{1,0:T(8,128)(4,1)}", 16 * 128),
        # A tile of more dims than the array has.
        ("f32[300]{0:T(8,128)}", 8 * 384 * 4),
        ("f32[100,200]{1,0}", 100 * 200 * 4),
        ("f32[0,200]{1,0:T(8,128)}", 0),
    ],
)
def test_tiles_are_filled_up(text, padded):
    assert read_shape(text).padded_bytes == padded


DIMS = st.lists(st.integers(1, 300), min_size=1, max_size=4)


@given(DIMS, st.randoms(use_true_random=False))
def test_padding_never_shrinks_and_stops_at_one_tile_a_dim(dims, random):
    order = list(range(len(dims)))
    random.shuffle(order)
    text = f"f32[{','.join(map(str, dims))}]{{{','.join(map(str, order))}:T(8,128)}}"
    array = read_shape(text)
    assert array.layout.order == tuple(order)
    assert array.bytes == 4 * prod(dims) <= array.padded_bytes
    # One tile at most is added along each of the two minor dims.
    minor, second = dims[order[0]], dims[order[1]] if len(dims) > 1 else 1
    most = array.bytes * (1 + 127 / minor) * (1 + 7 / second)
    assert array.padded_bytes <= most * (1 + 1e-12)  # what rounding leaves


@given(DIMS)
def test_whole_tiles_need_no_padding(dims):
    dims[-1] *= 128
    if len(dims) > 1:
        dims[-2] *= 8
    order = ",".join(str(i) for i in reversed(range(len(dims))))
    tile = "T(8,128)" if len(dims) > 1 else "T(128)"
    array = read_shape(f"f32[{','.join(map(str, dims))}]{{{order}:{tile}}}")
    assert array.padded_bytes == array.bytes
