"""A serving plan's programs are the engine's step: run, they say what one device says."""

from functools import cache
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens

from shardwise.plans import ServeDtypes, ServePlan, ServeScheduling
from shardwise.runtime import forward, initialise, quantise_params
from shardwise.runtime.programs import serve_program
from shardwise.runtime.stack import unstacked

TOKENS = 8
slow = pytest.mark.slow


@cache
def int8_model():
    cfg = goldens.config("llama")
    make = jax.jit(lambda key: quantise_params(initialise(cfg, key), cfg))
    return cfg, make(jax.random.key(0))


def serving(mesh, phase):
    """Eight sequences of eight tokens and four more, in chunks of eight, on pages of four."""
    cfg, _ = int8_model()
    plan = ServePlan(
        model="llama",
        model_hash="",
        slice="v5e:2x4",
        mesh=mesh,
        box=(2, 4),
        batch=8,
        input_length=TOKENS,
        output_length=4,
        prefill_chunk=TOKENS,
        kv_sharding="heads_then_batch",
        scheduling=ServeScheduling(page_size=4),
        dtypes=ServeDtypes(weights="int8", kv="f32", activations="f32", compute="f32"),
    )
    degrees = tuple(mesh.values())
    devices = np.array(jax.devices()[: prod(degrees)], dtype=object).reshape(degrees)
    return serve_program(plan, cfg, jax.sharding.Mesh(devices, tuple(mesh)), phase)


def run(program, **values):
    """The answers of the compiled program to zeros and some inputs; its state is its own again."""
    _, params = int8_model()
    shapes, made = program.arguments, program.function.lower(*program.arguments).compile()
    held = [
        prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in shapes[1].pages[0].values()
    ]
    assert made.memory_analysis().alias_size_in_bytes >= sum(held)
    state, inputs = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes[1:])
    apart = unstacked(params)  # as on every platform but TPUs
    stored = jax.tree.map(lambda w, like: w.astype(like.dtype), apart, shapes[0])  # 0 and 1 alone
    given = (stored, state, inputs._replace(**values))
    return made(*jax.tree.map(jax.device_put, given, made.input_shardings[0]))


def tables(program, rows, name):
    """Pages of its own for each row, within its pool."""
    G, R, M = getattr(program.arguments[2], name).shape
    return np.arange(R * M, dtype=np.int32).reshape(G, R, M) % (rows * M)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        {"fsdp": 2, "tensor": 4},
        pytest.param({"data": 2}, marks=slow),
        pytest.param({"tensor": 4}, marks=slow),
        pytest.param({"tensor": 2}, marks=slow),
    ],
    ids=str,
)
def test_a_decode_step_of_a_plan(mesh):
    """Over tensor 4 the sequences of the two KV heads are spread; fsdp cuts D of the weights."""
    cfg, params = int8_model()
    program = serving(mesh, "decode")
    tokens = np.random.default_rng(0).integers(0, cfg.vocabulary, 8).astype(np.int32)
    right = forward(params, tokens[:, None], cfg)[:, -1].argmax(-1)
    table = tables(program, 8 // pools_of(program), "table_GDM")
    _, outputs = run(
        program, tokens_D=tokens, slots_D=np.arange(8, dtype=np.int32), table_GDM=table
    )
    assert outputs.tokens[0].tolist() == right.tolist()


@pytest.mark.parametrize(
    "mesh", [{"fsdp": 2, "tensor": 2}, pytest.param({"tensor": 2}, marks=slow)], ids=str
)
def test_a_chunk_of_a_prompt_of_a_plan(mesh):
    """Each pool has a prompt of its own."""
    cfg, params = int8_model()
    program = serving(mesh, "prefill")
    pools, shapes = pools_of(program), program.arguments[2]
    T, count = len(shapes.tokens_T) // pools, TOKENS // pools
    prompts = np.random.default_rng(0).integers(0, cfg.vocabulary, (pools, count))
    tokens, places = np.zeros((pools, T), np.int32), np.full((pools, T), -1, np.int32)
    tokens[:, :count], places[:, :count] = prompts, np.arange(count)
    right = forward(params, jnp.asarray(prompts, jnp.int32), cfg)[:, -1].argmax(-1)
    ends = np.zeros(len(shapes.ends_E), np.int32)
    ends[:pools] = np.arange(pools) * T + count - 1
    _, outputs = run(
        program,
        tokens_T=tokens.reshape(-1),
        positions_T=places.reshape(-1),
        table_GCM=tables(program, 1, "table_GCM"),
        ends_E=ends,
    )
    assert outputs.tokens[0, :pools].tolist() == right.tolist()


def pools_of(program):
    shape = program.mesh.shape
    return prod(shape[axis] for axis in ("data", "expert", "fsdp", "spread"))


def test_what_reads_the_pages_is_said():
    program = serving({"tensor": 2}, "decode")
    assert len(program.notes) == 1
    assert program.notes[0].endswith("JAX's kernel serves where the devices are TPUs")
