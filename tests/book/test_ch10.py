"""Chapter 10, programming TPUs in JAX: every entry on virtual devices, with its own inputs.

`10.timing` was measured on TPUs and gates nothing.
"""

import json

import pytest

from book.oracle import ENTRIES, TESTED, check, entry
from shardwise.profiler import QUICK_COMPILE, run_function, run_source
from shardwise.profiler.hlo import read_collectives, read_matmuls
from shardwise.sharding import Layout, Mesh
from shardwise.sharding.program_text import program_source
from shardwise.sharding.steps import Program, ShardStep

TESTED.add("10.timing")

CODE = """
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwise.runtime.collective_matmul as cm

ENTRIES = json.loads('''%s''')
answer = {}


def mesh_of(**degrees):
    auto = (AxisType.Auto,) * len(degrees)
    return jax.make_mesh(tuple(degrees.values()), tuple(degrees), axis_types=auto)


def first_four(x):
    return lax.psum(x[:4] / lax.axis_size("x"), "x")

average = jax.shard_map(first_four, mesh=mesh_of(x=8), in_specs=P("x"), out_specs=P())
answer["10.slice_avg"] = jax.jit(average)(jnp.arange(512)).tolist()


def shard_means(x):
    return jnp.mean(x)[None, None]

mesh = mesh_of(X=4, Y=2)
x = jax.device_put(jnp.arange(4096.0).reshape(512, 8), jax.NamedSharding(mesh, P("X", "Y")))
means = jax.shard_map(shard_means, mesh=mesh, in_specs=P("X", "Y"), out_specs=P("X", "Y"))
means = jax.jit(means).lower(x).compile()
answer["10.1.latest"] = {"means": means(x).ravel().tolist(), "hlo": means.as_text()}


def routed(a_SD, w_EDF, expert_S):
    # Each device has some experts: a scan over them adds every token's product with its own.
    first = lax.axis_index("E") * w_EDF.shape[0]

    def one(out_SF, weights):
        number, w_DF = weights
        mine = (expert_S == first + number)[:, None]
        return out_SF + jnp.where(mine, a_SD @ w_DF, 0), None

    zeros = lax.pcast(jnp.zeros((a_SD.shape[0], w_EDF.shape[2])), "E", to="varying")
    out_SF, _ = lax.scan(one, zeros, (jnp.arange(w_EDF.shape[0]), w_EDF))
    return lax.psum(out_SF, "E")

inputs = ENTRIES["10.2.latest"]["inputs"]
S, D, F, E = (inputs[k] for k in "SDFE")
random = np.random.default_rng(0)
a, w = random.normal(size=(S, D)).astype("f"), random.normal(size=(E, D, F)).astype("f")
expert = random.integers(0, E, S)
moe = jax.shard_map(
    routed,
    mesh=jax.sharding.Mesh(np.array(jax.devices()[:E]), "E"),
    in_specs=(P(), P("E"), P()),
    out_specs=P(),
)
want = np.einsum("sd,sdf->sf", a, w[expert])
error = np.abs(np.asarray(jax.jit(moe)(a, w, expert)) - want).max()
answer["10.2.latest"] = float(error / np.abs(want).max())

inputs = ENTRIES["10.1.seed"]["inputs"]
mesh, sizes = mesh_of(**inputs["mesh"]), [inputs[k] for k in "BDF"]
B, D, F = (size // 8 for size in sizes)  # as many hops in less time; whole below, where none runs
draw = lambda *shape: random.normal(size=shape).astype("f")
x, w_in, w_out = draw(B, D), draw(D, F), draw(F, D)
TILES, COLUMNS, ROWS = P("X", "Y"), P(None, "Y"), P("Y", None)


def mapped(function, ins, out):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out))


def error(function, ins, out, want, *arrays):
    got = mapped(function, ins, out)(*arrays)
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())

product = np.asarray(jax.jit(jnp.dot)(x, w_in))
relu = np.maximum(product, 0)
down = np.asarray(jax.jit(jnp.dot)(relu, w_out))


def block(x_BD, w_in_DF, w_out_FD, *, bidirectional):
    # In[B_X, D_Y] * W_in[D, F_Y] -> Tmp[B_X, F_Y]; Tmp * W_out[F_Y, D] -> Out[B_X, D_Y]
    gather, scatter = cm.all_gather_matmul, cm.matmul_reduce_scatter
    if bidirectional:
        gather = cm.all_gather_matmul_bidirectional
        scatter = cm.matmul_reduce_scatter_bidirectional
    tmp_BF = jax.nn.relu(gather(x_BD, w_in_DF, axis="Y"))
    return scatter(tmp_BF, w_out_FD, axis="Y")


y = {"axis": "Y"}
answer["10.1.seed"] = error(
    partial(cm.matmul_all_reduce, **y), (TILES, ROWS), P("X", None), product, x, w_in
)
answer["10.2.seed"] = error(
    partial(cm.matmul_reduce_scatter, **y), (TILES, ROWS), TILES, down, relu, w_out
)
answer["10.3.seed"] = error(
    partial(block, bidirectional=False), (TILES, COLUMNS, ROWS), TILES, down, x, w_in, w_out
)
answer["10.4.seed"] = max(
    error(
        partial(cm.matmul_all_reduce_bidirectional, **y),
        (TILES, ROWS), P("X", None), product, x, w_in,
    ),
    error(
        partial(cm.matmul_reduce_scatter_bidirectional, **y),
        (TILES, ROWS), TILES, down, relu, w_out,
    ),
    error(
        partial(block, bidirectional=True), (TILES, COLUMNS, ROWS), TILES, down, x, w_in, w_out
    ),
)

B, D, F = sizes
whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
gather = mapped(partial(cm.all_gather_matmul, **y), (TILES, COLUMNS), TILES)
answer["10.cm_bytes"] = gather.lower(whole(B, D), whole(D, F)).compile().as_text()
scatter = mapped(partial(cm.matmul_reduce_scatter_bidirectional, **y), (TILES, ROWS), TILES)
answer["hops"] = scatter.lower(whole(B, F), whole(F, D)).compile().as_text()

print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def answers():
    entries = {i: {"inputs": e["inputs"]} for i, e in ENTRIES.items() if e["chapter"] == "10"}
    return json.loads(run_source(CODE % json.dumps(entries), xla_flags=QUICK_COMPILE))


@entry("10.hlo_local")
def test_what_xla_multiplies_on_one_device(e):
    layouts = map(Layout.parse, ("In[B_X, D_Y]", "W[D_Y, F]", "Out[B_X, F]{U_Y}", "Out[B_X, F]"))
    x, w, partial_sums, out = layouts
    steps = (
        ShardStep(kind="einsum", inputs=(x, w), output=partial_sums),
        ShardStep(kind="all_reduce", inputs=(partial_sums,), output=out, axes=("Y",)),
    )
    sizes = {"B": 8, "D": 2048, "F": 8192}
    program = Program(mesh=Mesh.parse("X=4,Y=2"), sizes=sizes, dtype="bf16", steps=steps)
    case = {"source": program_source(program, ("jit",)), "styles": ("jit",)}
    cases = [case | {"run": False, "gradients": False}]
    (answer,) = run_function("shardwise.profiler.jobs:run_programs", {"cases": cases})
    (matmul,) = read_matmuls(answer["jit"]["hlo"])
    check(e, (matmul.m, matmul.k, matmul.m, matmul.n))


@pytest.mark.slow
@entry("10.slice_avg")
def test_slice_and_average(e, answers):
    check(e, answers["10.slice_avg"])


@entry("10.cm_bytes")
def test_bytes_sent_by_the_all_gather_collective_matmul(e, answers):
    sent = read_collectives(answers["10.cm_bytes"])
    assert {c.kind for c in sent} == {"permute"}
    check(e, int(sum(c.bytes * c.count for c in sent)))


@entry("10.1.latest")
def test_means_of_shards_need_no_communication(e, answers):
    assert not read_collectives(answers["10.1.latest"]["hlo"])
    check(e, answers["10.1.latest"]["means"])


@entry("10.2.latest")
def test_routing_over_experts_equals_the_dense_reference(e, answers):
    check(e, answers["10.2.latest"])


@entry("10.1.seed")
def test_all_reduce_collective_matmul(e, answers):
    check(e, answers["10.1.seed"])


@entry("10.2.seed")
def test_reduce_scatter_collective_matmul(e, answers):
    check(e, answers["10.2.seed"])


@entry("10.3.seed")
def test_overlapped_block(e, answers):
    check(e, answers["10.3.seed"])


@entry("10.4.seed")
def test_bidirectional_versions(e, answers):
    check(e, answers["10.4.seed"])
    # ceil((|Y| - 1) / 2) = 2 steps, two permutes each, instead of 3.
    assert len(read_collectives(answers["hops"])) == 4
