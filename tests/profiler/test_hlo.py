"""Reading collectives: every spelling of groups, start/done pairs, loops; and real dumps."""

import json

import pytest
from tests.profiler.overlap import read_overlaps

from shardwise.errors import ShardwiseError
from shardwise.profiler import run_source
from shardwise.profiler.hlo import (
    at_dtype,
    mesh_axes,
    on_mesh,
    read_collectives,
    read_groups,
    read_matmuls,
    read_module,
    read_pairs,
    read_shape,
)
from shardwise.sharding import Mesh

MESH = Mesh.parse("X=2,Y=2,Z=2")


def test_shapes():
    assert read_shape("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}").bytes == 2048
    assert [a.bytes for a in read_shape("(f32[4]{0}, (s4[6], pred[]))")[1]] == [3, 1]
    assert read_shape("f32[<=8,2]").dims == (8, 2)
    with pytest.raises(ShardwiseError, match="cannot be read"):
        read_shape("q7[4]")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=4,'b'=2] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=4,'b'=2] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        (
            "mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}",
            ((0, 1, 2, 3), (4, 5, 6, 7)),
        ),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
    ],
)
def test_groups(text, groups):
    assert read_groups(text, 8) == groups


def test_groups_that_cannot_be_read_are_an_error():
    with pytest.raises(ShardwiseError, match="cannot be read"):
        read_groups("[2,4]<[8]", 8)


def test_axes_of_groups():
    assert mesh_axes(((0, 2), (1, 3), (4, 6), (5, 7)), MESH).axes == ("Y",)
    assert mesh_axes(((0, 4, 1, 5), (2, 6, 3, 7)), MESH) == (("X", "Z"), True)
    half = mesh_axes(((0, 1), (2, 3)), Mesh.parse("X=4"))
    assert half == (("X",), False)
    assert mesh_axes(read_pairs("{{0,1},{1,0},{2,2}}"), MESH).axes == ("Z",)


ASYNC = """HloModule m, is_scheduled=true, num_partitions=4

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element((s32[], f32[8]{0}) %p), index=1
  %start = (f32[8]{0}, f32[8]{0}, u32[]) collective-permute-start(%x), source_target_pairs={{0,1}}
  %d = f32[8,8]{1,0} fusion(f32[8]{0} %x), kind=kOutput, calls=%fused
  %done = f32[8]{0} collective-permute-done((f32[8]{0}, f32[8]{0}, u32[]) %start)
  %i = s32[] get-tuple-element((s32[], f32[8]{0}) %p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %t = (s32[], f32[8]{0}) tuple(%next, %done)
}

%fused (q: f32[8]) -> f32[8,8] {
  %q = f32[8]{0} parameter(0)
  ROOT %dot = f32[8,8]{1,0} dot(%q, %q), lhs_contracting_dims={}, rhs_contracting_dims={}
}

%condition (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%wrapped (w: f32[8]) -> f32[2] {
  %w = f32[8]{0} parameter(0)
  ROOT %rs = f32[2]{0} reduce-scatter(%w), replica_groups=[1,4]<=[4], dimensions={0}, to_apply=%add
}

ENTRY %main (a: f32[8], b: bf16[4]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = bf16[4]{0} parameter(1)
  %ag = (bf16[4]{0}, bf16[8]{0}) all-gather-start(%b), replica_groups={{0,1},{2,3}}, dimensions={0}
  %agd = bf16[8]{0} all-gather-done(%ag)
  %ar = (f32[8]{0}, bf16[4]{0}) all-reduce(%a, %b), replica_groups={}, metadata={op_name="\\"x"}
  %rs-start = ((f32[8]{0}), f32[2]{0}, s32[]) async-start(%a), calls=%wrapped
  %rs-update = ((f32[8]{0}), f32[2]{0}, s32[]) async-update(%rs-start), calls=%wrapped
  %rs-done = f32[2]{0} async-done(%rs-update), calls=%wrapped
  %zero = s32[] constant(0)
  %init = (s32[], f32[8]{0}) tuple(%zero, %a)
  %loop = (s32[], f32[8]{0}) while(%init), condition=%condition, body=%body
  ROOT %out = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_starts_loops_and_tuples():
    found = {c.kind: c for c in read_collectives(ASYNC)}
    assert [c.kind for c in read_collectives(ASYNC)] == [
        "all_gather",
        "all_reduce",
        "reduce_scatter",
        "permute",
    ]
    assert (found["all_gather"].bytes, found["all_gather"].done) == (16, "agd")
    assert (found["all_reduce"].bytes, found["all_reduce"].dtypes) == (40, ("f32", "bf16"))
    assert not found["all_reduce"].asynchronous
    assert (found["reduce_scatter"].bytes, found["reduce_scatter"].done) == (32, "rs-done")
    assert (found["permute"].bytes, found["permute"].count) == (32, 3)
    assert found["permute"].counted


def test_what_runs_between_a_start_and_its_done():
    overlaps = {o.collective.kind: o for o in read_overlaps(ASYNC)}
    assert overlaps["permute"].matmuls == ("d",)
    assert overlaps["all_gather"].between == ()


def test_a_loop_without_a_trip_count_is_marked():
    text = ASYNC.replace("direction=LT", "direction=EQ")
    (permute,) = (c for c in read_collectives(text) if c.kind == "permute")
    assert (permute.count, permute.counted) == (1, False)


def test_unknown_collectives_are_errors():
    text = ASYNC.replace(" all-reduce(", " collective-broadcast(")
    with pytest.raises(ShardwiseError, match="has no rule here"):
        read_collectives(text)
    with pytest.raises(ShardwiseError, match="no ENTRY computation"):
        read_module("not HLO")


DUMPS = """
import json

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 2, 2), ("X", "Y", "Z"), axis_types=(AxisType.Auto,) * 3)


def text(function, ins, out, dtype="float32"):
    mapped = jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out, check_vma=False)
    return jax.jit(mapped).lower(jax.ShapeDtypeStruct((16, 8), dtype)).compile().as_text()

swap = [(0, 0), (1, 2), (2, 1), (3, 3)]

def loop(x):
    return lax.fori_loop(0, 5, lambda i, y: lax.psum(y, "Z") * 0.5, x)

print(json.dumps({
    "gather": text(lambda x: lax.all_gather(x, ("Z", "X"), tiled=True), P(("Z", "X")), P()),
    "scatter": text(
        lambda x: lax.psum_scatter(x, ("X", "Y"), tiled=True), P(), P(("X", "Y"))
    ),
    "sum": text(lambda x: lax.psum(x, "Y"), P(), P(), "bfloat16"),
    "exchange": text(
        lambda x: lax.all_to_all(x, "Y", 1, 0, tiled=True), P("Y", None), P(None, "Y")
    ),
    "permute": text(lambda x: lax.ppermute(x, ("X", "Z"), swap), P("X", "Z"), P("Z", "X")),
    "loop": text(loop, P(), P()),
    "dot": text(lambda x: x @ x.T, P("X"), P("X")),
}))
"""


@pytest.fixture(scope="module")
def dumps():
    return json.loads(run_source(DUMPS))


@pytest.mark.parametrize(
    ("name", "kind", "axes", "size"),
    [
        ("gather", "all_gather", ("X", "Z"), 16 * 8 * 4),
        ("scatter", "reduce_scatter", ("X", "Y"), 16 * 8 * 4),
        ("sum", "all_reduce", ("Y",), 16 * 8 * 4),
        ("exchange", "all_to_all", ("Y",), 16 * 8 * 4),
        ("permute", "permute", ("X", "Z"), 8 * 4 * 4),
    ],
)
def test_real_dumps(dumps, name, kind, axes, size):
    (compiled,) = read_collectives(dumps[name])
    collective, over = on_mesh(compiled, MESH)
    assert (collective.kind, collective.axes, collective.bytes) == (kind, axes, size)
    assert over.whole


def test_narrow_floats_that_a_cpu_sends_in_float32(dumps):
    (compiled,) = read_collectives(dumps["sum"])
    assert compiled.dtypes == ("f32",)
    assert at_dtype(compiled, "bf16").bytes == 16 * 8 * 2
    assert at_dtype(compiled, "f32") == compiled


def test_a_loop_counts_its_trips(dumps):
    (compiled,) = read_collectives(dumps["loop"])
    assert (compiled.count, compiled.counted) == (5, True)


def test_matmuls_of_one_device(dumps):
    (matmul,) = read_matmuls(dumps["dot"])
    assert (matmul.m, matmul.k, matmul.n, matmul.batch) == (8, 8, 8, 1)
