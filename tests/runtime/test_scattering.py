"""ReduceScatters in the forms that libtpu keeps, and gathers of pieces that are no whole tile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from tests.equivalence import cases
from tests.tiers import spread

from shardwise.runtime import mesh_of
from shardwise.runtime.options import Options, activation_apart
from shardwise.runtime.parallel.fsdp import gather_hook
from shardwise.runtime.parallel.scattering import ROWS, blocks, scattered
from shardwise.runtime.parallel.setup import Setup

MESH = {"fsdp": 2, "context": 4}


@given(st.integers(1, 2 * ROWS), st.integers(1, 10**6))
def test_blocks_are_all_columns(rows, columns):
    found = blocks(rows, columns)
    assert sum(found) == columns
    assert found == [columns] or (rows < ROWS and all(n & (n - 1) == 0 for n in found))
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim"), spread([((8, 3), 0), ((1, 8, 3), 1), ((3, 1, 16), 2)], slow=2, rows=True)
)
def test_scattered_is_the_sum_cut_by_all_axes(shape, dim, at_once):
    """Device i holds i + 1 times x, so that all hold their cut of 36 x."""
    mesh = mesh_of(MESH)
    x = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)

    def local(x):
        mine = 4 * jax.lax.axis_index("fsdp") + jax.lax.axis_index("context") + 1
        return scattered(jnp.float32(mine) * x, dim, tuple(MESH), at_once=at_once)

    spec = P(*[tuple(MESH) if i == dim else None for i in range(len(shape))])
    run = jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=spec, check_vma=False)
    np.testing.assert_array_equal(run(x), 36 * x)


def plan_and_model():
    return cases.plan_of("llama", MESH, context_method="ring"), cases.config("llama")


def test_pieces_below_a_tile_are_gathered_over_inner_axes_first():
    """D=32 over 8 devices are 4 rows each, over fsdp alone 16; W[F, D] is gathered as W[D, F]."""
    plan, cfg = plan_and_model()
    moves = gather_hook(Setup(plan=plan, cfg=cfg, mesh=mesh_of(MESH))).moves
    up, down = (moves[0, f"mlp.{name}"] for name in ("up", "down"))
    assert [way.spec for way in up.ways] == [P("fsdp", None), P(None, None)]
    assert [way.spec for way in down.ways] == [P("fsdp", None), P(None, None)]
    assert (up.turned, down.turned) == (False, True)
    assert up.homes[-1].spec == down.homes[-1].spec == P(("fsdp", "context"), None)
    assert len(moves[0, "attention.q"].ways) == 1


@pytest.mark.slow
def test_steps_of_such_pieces_are_those_of_one_device():
    cases.check("llama", MESH, context_method="ring")


def test_an_activation_stands_apart_on_v5p_where_matmuls_are_made_again():
    kinds = ("TPU v5", "TPU v5 lite", "TPU v4", "TPU v6 lite", "TPU7x", "cpu", "NVIDIA H100")
    found = [activation_apart(kind, 4096, "block", looped=True) for kind in kinds]
    assert found == ["matmuls", *["passes"] * 6]
    assert activation_apart("TPU v5", 2048, "block", looped=True) == "passes"
    assert activation_apart("TPU v5", 4096, "none", looped=True) == "nothing"
    assert activation_apart("TPU v5", 4096, "none", looped=False) == "matmuls"
    assert Options().apart == "passes"
