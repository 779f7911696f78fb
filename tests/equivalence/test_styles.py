"""jit, explicit sharding and shard_map: one step, the same values, the same collectives."""

import jax
import numpy as np
import pytest
from tests.equivalence import cases, styles

from shardwise.errors import BadRequest
from shardwise.profiler.hlo import read_collectives
from shardwise.runtime import mesh_of

MESH, RATE = {"data": 2, "fsdp": 2, "tensor": 2}, 0.1
D, F = 32, 48
CFG, PLAN = cases.config("llama"), cases.plan_of("llama", MESH)


def arrays():
    layer = cases.start("llama", "float32")["layers"][0]
    x, y = np.random.RandomState(0).randn(2, cases.B, cases.T, D).astype(np.float32)
    return {name: layer[name][0] for name in styles.NAMES}, x, y


def run(style):
    """The new weights, the loss, and the text of the compiled step."""
    mesh = mesh_of(PLAN)
    at = styles.layouts(PLAN, CFG, styles.mesh_for(style, mesh))
    w, x, y = arrays()
    placed = {name: jax.device_put(w[name], at.at(at.stored[name])) for name in w}
    stream = jax.device_put((x, y), at.at(at.stream))
    compiled = styles.step(style, PLAN, CFG, mesh, RATE).lower(placed, *stream).compile()
    new, loss = compiled(placed, *stream)
    assert {name: v.sharding.spec for name, v in new.items()} == at.stored
    return jax.tree.map(np.asarray, new), float(loss), compiled.as_text()


def alone(w, x, y):
    def loss(w):
        h = jax.nn.silu(x @ w["mlp.gate"]) * (x @ w["mlp.up"])
        return jax.numpy.square(x + h @ w["mlp.down"] - y).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(w)
    return {name: np.asarray(w[name] - RATE * grads[name]) for name in w}, float(value)


def traffic(text):
    """Bytes by what is done and over which devices, the loss left out. A CPU's compiler writes a
    reduce-scatter as an all-reduce of which each device takes its part."""
    found = {}
    for c in read_collectives(text):
        if c.bytes > 8:
            kind = "gather" if c.kind == "all_gather" else "sum"
            key = kind, frozenset(map(frozenset, c.groups))
            found[key] = found.get(key, 0) + c.bytes
    return found


def groups(axis):
    """The devices along an axis of the mesh 2 x 2 x 2."""
    grid = np.moveaxis(np.arange(8).reshape(2, 2, 2), list(MESH).index(axis), -1)
    return frozenset(map(frozenset, grid.reshape(4, 2).tolist()))


W, X = (
    3 * D * F // 2 * 4,
    cases.B // 4 * cases.T * D * 4,
)  # in use by a device: F_tensor; x[B, T, D]
EXPECTED = {
    ("gather", groups("fsdp")): W,
    ("gather", groups("tensor")): 2 * X,  # x, and backward the gradient of the sum
    ("sum", groups("tensor")): X,
    ("sum", groups("fsdp")): W,
    ("sum", groups("data")): W // 2,  # of the pieces
}


@pytest.mark.parametrize("style", ["jit", "explicit", "shard_map"])
def test_every_style_computes_the_step_with_the_same_collectives(style):
    new, loss, text = run(style)
    want, value = alone(*arrays())
    w, _, _ = arrays()
    assert loss == pytest.approx(value, rel=1e-6)
    for name in want:
        assert cases.error(want[name] - w[name], new[name] - w[name]) < 1e-5
    assert traffic(text) == EXPECTED


def test_scatters_are_written_where_shard_map_writes_them():
    kinds = {c.kind for c in read_collectives(run("shard_map")[2])}
    assert kinds == {"all_gather", "reduce_scatter", "all_reduce"}


def test_other_meshes_are_refused():
    plan = cases.plan_of("llama", {"data": 2})
    with pytest.raises(BadRequest, match="cut data, fsdp and tensor"):
        styles.layouts(plan, CFG, mesh_of(plan))
    with pytest.raises(BadRequest, match="no gated MLP"):
        styles.layouts(cases.plan_of("gpt2", MESH), cases.config("gpt2"), mesh_of(PLAN))
