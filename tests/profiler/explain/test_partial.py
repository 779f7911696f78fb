"""Sums over devices of products that are cut along the dim that they sum over, and constraints that
make arrays whole."""

import pytest

from shardwise.hardware import parse_slice
from shardwise.profiler.explain import explain_program
from shardwise.sharding import Mesh

MESH = Mesh.parse("data=2,tensor=4")
HEAD = """HloModule step, num_partitions=8

add {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT sum = bf16[] add(a, b)
}

ENTRY main {
"""
CUT = "sharding={devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
GROUPS = "replica_groups=[2,4]<=[8], to_apply=add"
AT = 'metadata={op_name="jit(step)/dot_general" source_file="mine.py" source_line=%d}'


def program(width, narrow, last):
    """A sum over tensor of [T, R_tensor] x [R_tensor, D], R = `width`; `narrow` and `last` are
    lines after it."""
    rank = width // 4
    return (
        f"{HEAD}  a = bf16[8192,{rank}] parameter(0), {CUT}\n"
        f"  b = bf16[8192,{rank}] parameter(1), {CUT}\n"
        "  dot = bf16[8192,8192] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
        f"{AT % 7}\n  s = bf16[8192,8192] all-reduce(dot), channel_id=1, {GROUPS}, {AT % 7}\n"
        f"{narrow}  {last}\n}}\n"
    )


SHRUNK = "ROOT out = bf16[8192,512] dot(s, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
WEIGHT = "  w = bf16[8192,512] parameter(2)\n"


def told(text):
    found = explain_program(text, parse_slice("v5e:2x4"), MESH, partitioned=True)
    return [f for f in found.findings if f.rule == "partial sums"]


def test_a_sum_far_larger_than_its_factors_is_told_with_another_cut():
    (found,) = told(program(512, WEIGHT, SHRUNK))
    assert found.where == "mine.py:7"
    assert "A[J, L_tensor] * B[K, L_tensor] -> C[J, K]{U_tensor}" in found.what
    assert "C[J_tensor, K]" in found.remedy or "C[J, K_tensor]" in found.remedy


def test_as_large_as_its_factors_it_is_the_price_of_tensor_parallelism():
    assert told(program(8192, WEIGHT, SHRUNK)) == []


def test_a_result_that_leaves_the_step_is_needed_so():
    assert told(program(512, "", "ROOT out = bf16[8192,8192] negate(s)")) == []


@pytest.mark.parametrize(("width", "count"), [(8192, 0), (64, 1)])
def test_a_narrow_sum_that_is_added_to_a_wide_one_is_a_part_of_it(width, count):
    """Keys are narrower than queries, and what goes back through both is one sum."""
    rank = width // 4
    more = (
        f"  c = bf16[8192,{rank}] parameter(3), {CUT}\n"
        f"  d = bf16[8192,{rank}] parameter(4), {CUT}\n"
        "  q = bf16[8192,8192] dot(c, d), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
    )
    added = f"  t = bf16[8192,8192] all-reduce(q), channel_id=2, {GROUPS}\n"
    alone = program(512, WEIGHT + more + added, SHRUNK)
    assert len(told(alone)) == 1 + count
    both = program(512, f"{WEIGHT}{more}{added}  u = bf16[8192,8192] add(s, t)\n", SHRUNK)
    assert told(both.replace("dot(s, w)", "dot(u, w)")) == []


WHOLE = """HloModule step, num_partitions=8

ENTRY main {
  x = bf16[4096,2048] parameter(0), sharding={devices=[2,4]<=[8]}
  w = bf16[8192,1024] parameter(1), sharding={devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}
  y = bf16[4096,2048] exponential(x)
  g = bf16[4096,8192] all-gather(y), channel_id=1, replica_groups=[2,4]<=[8], dimensions={1}
  whole = bf16[4096,8192] copy(g), metadata={op_name="jit(step)/sharding_constraint" \
source_file="mine.py" source_line=5}
  table = s32[8] constant({0, 2048, 4096, 6144, 0, 2048, 4096, 6144})
  me = u32[] partition-id()
  one = s32[1] dynamic-slice(table, me), dynamic_slice_sizes={1}
  at = s32[] reshape(one)
  zero = s32[] constant(0)
  LAST
}
"""
PIECE = (
    "piece = bf16[4096,2048] dynamic-slice(whole, zero, at), dynamic_slice_sizes={4096,2048}\n"
    "  ROOT out = bf16[4096,2048] negate(piece)"
)
PRODUCT = (
    "ROOT out = bf16[4096,1024] dot(whole, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
)


@pytest.mark.parametrize(("last", "named"), [(PIECE, True), (PRODUCT, False)])
def test_a_constraint_is_told_only_where_nothing_needs_what_it_makes_whole(last, named):
    text = WHOLE.replace("LAST", last)
    found = explain_program(text, parse_slice("v5e:2x4"), MESH, partitioned=True)
    told = [f.where for f in found.findings if f.rule == "whole by a constraint"]
    assert told == ["mine.py:5"] * named
