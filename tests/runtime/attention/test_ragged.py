"""Attention to pages: our gathers beside JAX's reference, and where JAX's kernel serves."""

import json
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention
from tests.tiers import spread

from kept import FOLDER, hlo
from shardwise.models import Attention
from shardwise.plans.paged_kernel import KERNEL_LAWS, PagedLayer, kernel_problem
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import module_work
from shardwise.runtime.attention.paged import NOWHERE, PagedKeys, Paging, paged_attention
from shardwise.runtime.attention.ragged import ragged_attention
from shardwise.runtime.attention.scoring import Scoring
from shardwise.runtime.call import Past
from shardwise.runtime.paged_cache import JOINED, extend_pages

INDEX = json.loads((FOLDER / "index.json").read_text())
LAYERS, PAGES, SIZE, WIDTH, N, H = 2, 30, 4, 6, 4, 16
ROWS = {"positions": [9, 0, 22], "blocks": [(3, 8), (16, 5)]}
"""Of rows that decode their positions, of blocks of 8 tokens where they begin and how many there
are."""


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def step():
    """The paging and positions of a step, each row on pages of its own."""
    rng = np.random.default_rng(0)
    tables = jnp.asarray(rng.permutation(PAGES).reshape(5, WIDTH), jnp.int32)
    blocks = [[b + i if i < n else NOWHERE for i in range(8)] for b, n in ROWS["blocks"]]
    positions = jnp.asarray([*ROWS["positions"], *blocks[0], *blocks[1]], jnp.int32)
    starts = jnp.asarray([begin for begin, _ in ROWS["blocks"]], jnp.int32)
    return Paging(tables[:3], tables[3:], starts, SIZE), positions


def reference(*arguments, num_kv_pages_per_block, num_queries_per_block, **named):
    assert num_kv_pages_per_block <= WIDTH
    assert num_queries_per_block > 0
    return ref_ragged_paged_attention(*arguments, **named)


@pytest.mark.parametrize(
    ("K", "J", "named"),
    spread([(4, 2, {"softcap": 2.0}), (2, 2, {}), (2, 1, {"window": 5})], slow=1, rows=True),
    ids=str,
)
def test_gathers_say_what_jaxs_reference_says(K, J, named):
    """Of the same new keys and values after the same old ones: in arrays apart, which we gather,
    and side by side in groups of J heads, as the kernel takes them."""
    paging, positions_X = step()
    X, layer = len(positions_X), 1
    old = {n: normal(i, LAYERS, PAGES, SIZE, K, H) for i, n in enumerate("kv")}
    new = {n: normal(i + 2, 1, X, K, H) for i, n in enumerate("kv")}
    apart = {n: x.reshape(LAYERS, PAGES, SIZE, K * H) for n, x in old.items()}
    both = jnp.stack((old["k"], old["v"]), axis=4).reshape(LAYERS, PAGES, SIZE, K // J, 2 * J, H)
    joined = {JOINED: both.swapaxes(2, 3)}
    scoring = Scoring(
        **{"scale": 0.25, "softcap": None, "window": None, "chunk": None, **named},
        q_positions_BT=positions_X[None],
        k_positions_BS=positions_X[None],
    )
    q = normal(9, 1, X, N, H)
    extended = partial(extend_pages, paging=paging, positions_BX=positions_X[None], new=new)
    _, held = extended(Past(apart, layer, False))
    gathered = paged_attention(q, held["k"], held["v"], scoring)[0]
    _, held = extended(Past(joined, layer, False))
    assert isinstance(held["k"], PagedKeys)
    said = ragged_attention(
        q[0],
        held["k"].array_LPSX,
        layer,
        paging.ragged(positions_X),
        scoring,
        kernel=reference,
    )
    real = positions_X != NOWHERE
    np.testing.assert_allclose(said[real], gathered[real], rtol=1e-4, atol=1e-5)


def layer(**changes):
    spec = {"kind": "full", "heads": 8, "kv_heads": 2, "head_dim": 128, "v_head_dim": 128}
    here = changes.pop("here", 2)  # KV heads of the device
    own = {name: changes.pop(name) for name in list(changes) if name not in ("platform", "cache")}
    cuts = own.pop("cuts", 1)
    values = {"platform": "tpu", "cache": "bf16", "kv_heads": here, "cuts": cuts, **changes}
    return PagedLayer(mixer=Attention(**{**spec, **own}), **values)


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({}, None),
        ({"kind": "window", "window": 64}, "mask"),
        ({"head_dim": 256, "v_head_dim": 256, "here": 1}, None),
        ({"head_dim": 256, "v_head_dim": 256}, "head_dim"),
        ({"cache": "f32"}, None),
        ({"platform": "cpu"}, "tpu"),
        ({"head_dim": 64, "v_head_dim": 64}, "head_dim"),
        ({"head_dim": 256}, "head_dim"),
        ({"sinks": True}, "mask"),
        ({"kind": "chunk", "window": 64}, "mask"),
        ({"cache": "int8"}, "cache"),
        ({"cuts": 2}, "places"),
    ],
    ids=str,
)
def test_the_kernel_serves_where_every_law_holds(changes, law):
    found = kernel_problem(layer(**changes))
    assert (found and found.name) == law


def test_no_latent_cache():
    found = kernel_problem(PagedLayer(mixer=None, platform="tpu", cache="bf16", kv_heads=1))
    assert found is not None
    assert found.name == "kv_heads"
    assert len({law.name for law in KERNEL_LAWS}) == len(KERNEL_LAWS)


@pytest.mark.parametrize(
    ("kv_heads", "cache", "group"),
    [
        (1, "bf16", 1),
        (8, "bf16", 8),
        (10, "bf16", 2),
        (7, "bf16", 1),
        (40, "bf16", 40),
        (6, "f32", 2),
    ],
)
def test_heads_lie_in_groups_that_fill_tiles(kv_heads, cache, group):
    held = PagedLayer(mixer=None, platform="tpu", cache=cache, kv_heads=kv_heads)
    assert held.group == group


@pytest.mark.parametrize(
    ("changes", "entries", "shared", "width"),
    [
        ({"platform": "cpu", "head_dim": 64, "v_head_dim": 64}, (512, 512), False, 512),
        ({"head_dim": 64, "v_head_dim": 64}, (512, 512), False, 512),
        ({"head_dim": 80, "v_head_dim": 80}, (640, 640), True, 768),
        ({"cache": "int8"}, (1024, 1024), False, 1024),
    ],
    ids=str,
)
def test_entries_fill_whole_lanes_of_each_of_four_devices(changes, entries, shared, width):
    """8 KV heads, two on each device: 2 x 64 are 128 lanes, 2 x 80 take 256 and both 384."""
    held = layer(**{"heads": 8, "kv_heads": 8, **changes})
    held = replace(held, kv_heads=2)
    assert held.pairs(entries) is shared
    assert held.width(entries[0], 8) == (1024 if shared else width)
    assert held.width(sum(entries), 8) == (1536 if shared else 2 * width)


GENERATIONS = [row["name"] for row in INDEX["rows"] if row["name"].startswith("ragged_")]


def test_five_generations_are_kept():
    assert [f"ragged_{name}" for name in ("v4", "v5e", "v5p", "v6e", "tpu7x")] == GENERATIONS


@pytest.mark.parametrize("name", GENERATIONS)
def test_it_is_compiled_ahead_for_five_generations(name):
    """Rows that decode and blocks of a prompt in one call, of ten KV heads: tests/kept has what the
    compiler made of what is lowered now, and `tests/commands/program/test_compiling.py` compiles
    one anew.
    72 tokens of 20 heads of 128 dims see up to 8 pages of 64 places each."""
    work = module_work(read_module(hlo(name)))
    (kernel,) = (op for op in work.ops if op.op.op_class == "attention")
    assert kernel.opcode == "custom-call"
    seen = sum(kernel.op.flops.values()) / (4 * 20 * 128)
    assert 72 < seen <= 72 * 8 * 64
