"""Collective matmuls equal the plain product and, compiled for a TPU, hide their permutes.

What the TPU compiler makes of them is kept (`scripts/kept_programs.py`).
"""

import json

import pytest
from tests.profiler.overlap import read_overlaps

from kept import hlo
from shardwise.profiler import QUICK_COMPILE, run_source
from shardwise.profiler.hlo import read_collectives

BASE = """
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shardwise.runtime.collective_matmul as cm

SPECS = {
    "all_gather_matmul": ((P("X", "Y"), P(None, "Y")), P("X", "Y")),
    "matmul_reduce_scatter": ((P("X", "Y"), P("Y", None)), P("X", "Y")),
    "matmul_all_reduce": ((P("X", "Y"), P("Y", None)), P("X", None)),
}

def build(name, mesh):
    ins, out = SPECS[name.removesuffix("_bidirectional")]
    function = partial(getattr(cm, name), axis="Y")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out)), ins

NAMES = [name + way for name in SPECS for way in ("", "_bidirectional")]
"""

EQUAL = (
    BASE
    + """
PLACES = %s

def check(places, name):
    devices = jax.devices()[: 2 * places]
    mesh = jax.sharding.Mesh(np.array(devices).reshape(-1, places), ("X", "Y"))
    random = np.random.default_rng(places)
    # D/|Y| and F/|Y| are odd, so that the two halves of a block differ.
    B, D, F = 4, 3 * places, 10 * places
    draw = lambda *shape: random.integers(-3, 4, shape).astype(np.float32)
    x, w, weights = draw(B, D), draw(D, F), draw(B, F)
    function, _ = build(name, mesh)
    loss = lambda x, w: (function(x, w) * weights).sum()
    got = (function(x, w), *jax.jit(jax.grad(loss, (0, 1)))(x, w))
    want = (x @ w, weights @ w.T, x.T @ weights)
    return max(float(np.abs(np.asarray(g) - v).max()) for g, v in zip(got, want, strict=True))

def check_rows(places, bidirectional):
    devices = jax.devices()[: 2 * places]
    mesh = jax.sharding.Mesh(np.array(devices).reshape(-1, places), ("X", "Y"))
    random = np.random.default_rng(places)
    B, T, D, F = 4, 3 * places, 5, 2 * places
    draw = lambda *shape: random.integers(-3, 4, shape).astype(np.float32)
    x, w, v, weights = draw(B, T, D), draw(D, F), draw(F, D), draw(B, T, D)
    rows = dict(axis="Y", bidirectional=bidirectional)

    def local(x, w, v):
        (tmp,) = cm.all_gather_rows(x, lambda x: (x @ w,), **rows)
        return cm.reduce_scatter_rows(tmp, lambda tmp: tmp @ v, **rows)

    stream, ins = P("X", "Y"), (P("X", "Y"), P(None, "Y"), P("Y", None))
    function = jax.shard_map(local, mesh=mesh, in_specs=ins, out_specs=stream, check_vma=False)
    loss = lambda f: lambda *a: (f(*a) * weights).sum()
    pairs = (function, lambda x, w, v: x @ w @ v)
    got, want = (jax.jit(jax.value_and_grad(loss(f), (0, 1, 2)))(x, w, v) for f in pairs)
    errors = jax.tree.map(lambda g, v: float(np.abs(np.asarray(g) - v).max()), got, want)
    return max(jax.tree.leaves(errors))

found = {f"{name} {n}": check(n, name) for n in PLACES for name in NAMES}
found |= {f"rows {n} {b}": check_rows(n, b) for n in PLACES for b in (False, True)}
print(json.dumps(found))
"""
)


@pytest.mark.parametrize(
    "places", [(3,), pytest.param((1, 2, 4), marks=pytest.mark.slow)], ids=["3", "1, 2 and 4"]
)
def test_equals_the_plain_product_and_its_gradient(places):
    errors = json.loads(run_source(EQUAL % str(places), xla_flags=QUICK_COMPILE))
    assert len(errors) == (6 + 2) * len(places)
    assert set(errors.values()) == {0.0}


def test_a_tpu_multiplies_while_every_block_is_on_the_wire():
    text = hlo("gather_matmul")
    overlaps = read_overlaps(text)
    assert [o.collective.kind for o in overlaps] == ["permute"] * 3
    assert all(o.matmuls for o in overlaps), [o.between for o in overlaps]
    # 3 hops of A[B_X, D_Y] in bf16: [1024, 2048]; no blocking gather is left.
    assert {o.collective.bytes for o in overlaps} == {2 * 1024 * 2048}
    assert len(read_collectives(text)) == 3


def test_a_tpu_sends_sums_both_ways_while_it_multiplies():
    overlaps = read_overlaps(hlo("matmul_scatter"))
    # |Y| = 4: half a block of Out[B_X, D_Y] each way, then a whole one each way.
    half = 1024 * 2048
    assert sorted(o.collective.bytes for o in overlaps) == [half, half, 2 * half, 2 * half]
    assert all(o.matmuls for o in overlaps), [o.between for o in overlaps]
