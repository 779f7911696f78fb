"""A module as Work: streams, loops, waits, chains of fusions, transfers; nothing is dropped."""

import pytest

from shardwise.errors import BadRequest
from shardwise.profiler.hlo import HloOp, Nested, Wait, module_work, read_collectives, read_module
from shardwise.sharding import Mesh

HEADER = "HloModule m, is_scheduled=true, num_partitions=8\n\n"
CYCLES = 'backend_config={{"window_config":{{"estimated_cycles":"{0}"}}}}'.format

STEP = (
    HEADER
    + """%product (p.0: bf16[256,512], p.1: bf16[512,128]) -> bf16[256,128] {
  %p.0 = bf16[256,512]{1,0:T(8,128)(2,1)} parameter(0)
  %p.1 = bf16[512,128]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %c = bf16[256,128]{1,0:T(8,128)(2,1)} convolution(%p.0, %p.1), dim_labels=bf_io->bf
}

%slice (s.0: bf16[512,128]) -> bf16[512,128] {
  %s.0 = bf16[512,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %s.1 = bf16[512,128]{1,0:T(8,128)(2,1)S(1)} slice(%s.0), slice={[0:512], [0:128]}
}

%body (b: (s32[], bf16[256,512], bf16[512,128])) -> (s32[], bf16[256,512], bf16[512,128]) {
  %b = (s32[], bf16[256,512]{1,0:T(8,128)(2,1)}, bf16[512,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = bf16[256,512]{1,0:T(8,128)(2,1)} get-tuple-element(%b), index=1
  %w = bf16[512,128]{1,0:T(8,128)(2,1)} get-tuple-element(%b), index=2
  %one = s32[] constant(1)
  %fetch = ((bf16[512,128]{1,0}), bf16[512,128]{1,0:S(1)}, s32[]) async-start(%w), calls=%slice
  %more = s32[] add(%i, %one)
  %fetched = bf16[512,128]{1,0:T(8,128)(2,1)S(1)} async-done(%fetch)
  %y = bf16[256,128]{1,0:T(8,128)(2,1)} fusion(%x, %fetched), kind=kOutput, calls=%product, \
metadata={op_name="jit(f)/transpose(jvp(mlp))/while/body/bf,fd->bd/dot_general"}, CYCLES
  %sum = bf16[256,128]{1,0:T(8,128)(2,1)} all-reduce(%y), channel_id=1, \
replica_groups=[4,2]<=[8], to_apply=%add, metadata={op_name="jit(f)/while/body/psum"}
  %z = bf16[256,128]{1,0:T(8,128)(2,1)} negate(%sum)
  ROOT %t = (s32[], bf16[256,512]{1,0}, bf16[512,128]{1,0}) tuple(%more, %x, %w)
}

%condition (b: (s32[], bf16[256,512], bf16[512,128])) -> pred[] {
  %b = (s32[], bf16[256,512]{1,0}, bf16[512,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: bf16[256,512], w: bf16[512,128]) -> bf16[1024,128] {
  %x = bf16[256,512]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[512,128]{1,0:T(8,128)(2,1)} parameter(1)
  %zero = s32[] constant(0)
  %ag = (bf16[256,128]{1,0}, bf16[1024,128]{1,0}) all-gather-start(%w), channel_id=2, \
replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %init = (s32[], bf16[256,512]{1,0}, bf16[512,128]{1,0}) tuple(%zero, %x, %w)
  %loop = (s32[], bf16[256,512]{1,0}, bf16[512,128]{1,0}) while(%init), \
condition=%condition, body=%body
  ROOT %agd = bf16[1024,128]{1,0:T(8,128)(2,1)} all-gather-done(%ag)
}
""".replace("CYCLES", CYCLES(4096))
)


@pytest.fixture(scope="module")
def step():
    return module_work(read_module(STEP), Mesh.parse("data=4,tensor=2"))


def by_name(work):
    return {item.name: item for item in work.ops}


def test_every_scheduled_instruction_is_one_op_in_order(step):
    assert [item.name for item in step.ops] == [
        "ag", "lt", "fetch", "more", "y", "sum", "z",
    ]  # fmt: skip
    assert step.unknown() == ()


def test_loops_are_blocks_that_count_their_trips(step):
    start, loop, wait = step.block
    assert isinstance(start, HloOp)
    assert (loop.name, loop.times, loop.counted) == ("loop", 5, True)
    assert wait == Wait("ag")
    ops = by_name(step)
    assert (ops["y"].op.count, ops["y"].op.body, ops["ag"].op.count) == (5, "loop", 1)


def test_counts_of_a_matmul(step):
    y = by_name(step)["y"]
    assert y.op.flops == {"bf16": 2 * 256 * 512 * 128}
    assert (y.op.matmul.m, y.op.matmul.k, y.op.matmul.n) == (256, 512, 128)
    assert y.op.hbm_bytes == (256 * 512 + 256 * 128) * 2
    assert y.chip_bytes == 512 * 128 * 2
    assert (y.cycles, y.op.op_class, y.op.phase) == (4096, "matmul", "backward")
    assert (y.scope, y.op.component) == ("mlp/bf,fd->bd", "")
    assert step.work.flops() == 5 * 2 * 256 * 512 * 128


def test_streams_and_what_waits_for_what(step):
    ops = by_name(step)
    assert (ops["fetch"].op.stream, ops["fetch"].asynchronous) == ("copy", True)
    assert (ops["sum"].op.stream, ops["sum"].asynchronous) == ("net:tensor", False)
    assert (ops["ag"].op.stream, ops["ag"].asynchronous) == ("net:data", True)
    assert ops["y"].op.after == ("fetch",)
    assert ops["sum"].op.after == ("y",)
    assert ops["z"].op.after == ("sum",)


def test_collectives_are_those_of_the_list(step):
    listed = {(c.kind, c.bytes, c.count) for c in read_collectives(STEP)}
    counted = {
        (op.collective.kind, op.collective.bytes, op.count) for op in step.work.ops if op.collective
    }
    assert counted == listed
    assert by_name(step)["ag"].op.collective.axes == ("data",)


def test_axes_are_recovered_where_no_mesh_is_given():
    work = module_work(read_module(STEP))
    assert str(work.mesh) == "a0=4,a1=2"
    assert by_name(work)["sum"].op.stream == "net:a1"


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(BadRequest, match="runs on 8 devices and mesh X=4 has 4; give the mesh"):
        module_work(read_module(STEP), Mesh.parse("X=4"))


def test_a_loop_that_data_ends_counts_once_and_says_so():
    work = module_work(read_module(STEP.replace("%n = s32[] constant(5)", "%n = s32[] copy(%i)")))
    loop = next(item for item in work.block if isinstance(item, Nested))
    assert (loop.times, loop.counted) == (1, False)
    assert not by_name(work)["y"].counted


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("collective-broadcast(%sum), replica_groups=[4,2]<=[8]", "no rule for"),
        ("made-up-operation(%sum)", "no rule for 'made-up-operation'"),
        ('custom-call(%sum), custom_call_target="mystery"', "custom call 'mystery' says nothing"),
    ],
)
def test_what_has_no_rule_is_reported(line, note):
    work = module_work(read_module(STEP.replace("negate(%sum)", line)))
    (unknown,) = work.unknown()
    assert (unknown.name, unknown.op.count) == ("z", 5)
    assert unknown.op.hbm_bytes == 2 * 256 * 128 * 2
    assert note in unknown.note


def test_an_unknown_operation_within_a_fusion_is_reported():
    text = STEP.replace("convolution(%p.0, %p.1), dim_labels=bf_io->bf", "made-up(%p.0, %p.1)")
    assert [u.note for u in module_work(read_module(text)).unknown()] == ["no rule for 'made-up'"]


CHAIN = (
    HEADER
    + """%start (p: bf16[64,128]) -> (bf16[64,128], bf16[512,128]) {
  %p = bf16[64,128]{1,0} parameter(0)
  %ag.1 = bf16[512,128]{1,0} all-gather(%p), channel_id=7, replica_groups=[1,8]<=[8], CARRIED
  ROOT %cc = (bf16[64,128]{1,0}, bf16[512,128]{1,0}) custom-call(%ag.1), \
custom_call_target="AsyncCollectiveStart"
}

%middle (p: bf16[64,128], q: bf16[512,128], r: bf16[128,128]) -> (bf16[64,128], bf16[512,128]) {
  %p = bf16[64,128]{1,0} parameter(0)
  %q = bf16[512,128]{1,0} parameter(1)
  %r = bf16[128,128]{1,0} parameter(2)
  %ag.2 = bf16[512,128]{1,0} all-gather(%p), channel_id=7, replica_groups=[1,8]<=[8], CARRIED
  %d = bf16[64,128]{1,0} convolution(%p, %r), dim_labels=bf_io->bf
  ROOT %t = (bf16[64,128]{1,0}, bf16[512,128]{1,0}) tuple(%d, %ag.2)
}

%done (p: bf16[64,128], q: bf16[512,128]) -> bf16[512,128] {
  %p = bf16[64,128]{1,0} parameter(0)
  %q = bf16[512,128]{1,0} parameter(1)
  %ag.3 = bf16[512,128]{1,0} all-gather(%p), channel_id=7, replica_groups=[1,8]<=[8], CARRIED
  ROOT %cc = bf16[512,128]{1,0} custom-call(%p, %q, %ag.3), \
custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter (p: bf16[512,128]) -> bf16[64,128] {
  %p = bf16[512,128]{1,0} parameter(0)
  %i = u32[] partition-id()
  %ar = bf16[512,128]{1,0} all-reduce(%p), channel_id=8, replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %ds = bf16[64,128]{1,0} dynamic-slice(%ar, %i, %i), dynamic_slice_sizes={64,128}
}

ENTRY %main (x: bf16[64,128], w: bf16[128,128]) -> bf16[64,128] {
  %x = bf16[64,128]{1,0} parameter(0)
  %w = bf16[128,128]{1,0} parameter(1)
  %s = (bf16[64,128]{1,0}, bf16[512,128]{1,0}) fusion(%x), kind=kCustom, calls=%start
  %s.0 = bf16[64,128]{1,0} get-tuple-element(%s), index=0
  %s.1 = bf16[512,128]{1,0} get-tuple-element(%s), index=1
  %m = (bf16[64,128]{1,0}, bf16[512,128]{1,0}) fusion(%s.0, %s.1, %w), calls=%middle
  %m.1 = bf16[512,128]{1,0} get-tuple-element(%m), index=1
  %e = bf16[512,128]{1,0} fusion(%s.0, %m.1), kind=kCustom, calls=%done
  ROOT %rs = bf16[64,128]{1,0} fusion(%e), kind=kCustom, calls=%all-reduce-scatter
}
""".replace("CARRIED", 'backend_config={"async_collective_fusion_config":{"flag_start":"2"}}')
)


def test_a_collective_that_fusions_carry_on_counts_once():
    work = module_work(read_module(CHAIN))
    names = [i.name if isinstance(i, HloOp) else i for i in work.block]
    assert names == ["s", "m", Wait("s"), "rs"]
    ops = by_name(work)
    assert (ops["s"].op.collective.kind, ops["s"].op.collective.bytes) == (
        "all_gather",
        512 * 128 * 2,
    )
    assert (ops["m"].op.op_class, ops["m"].op.collective) == ("matmul", None)
    assert ops["rs"].op.after == ("s", "m")


def test_an_all_reduce_cut_to_a_shard_is_a_reduce_scatter():
    scatter = by_name(module_work(read_module(CHAIN)))["rs"].op.collective
    assert (scatter.kind, scatter.bytes) == ("reduce_scatter", 512 * 128 * 2)
    assert [c.kind for c in read_collectives(CHAIN)] == ["all_gather", "reduce_scatter"]


MEGASCALE = (
    "HloModule m, is_scheduled=true, num_partitions=4\n\n"
    + """ENTRY %main (x: f32[64,128]) -> f32[64,128] {
  %x = f32[64,128]{1,0} parameter(0)
  %token = token[] after-all()
  %send = (f32[64,128]{1,0}, u32[], token[]) send(%x, %token), channel_id=2, \
is_host_transfer=true, MARKS
  %recv = (f32[64,128]{1,0}, u32[], token[]) recv(%token), channel_id=1, \
is_host_transfer=true, MARKS
  %y = f32[64,128]{1,0} negate(%x)
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %recv-done = (f32[64,128]{1,0}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true
  ROOT %got = f32[64,128]{1,0} get-tuple-element(%recv-done), index=0
}
""".replace(
        "MARKS",
        'frontend_attributes={_xla_host_transfer_rendezvous="r_0",'
        '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}',
    )
)


def test_a_send_between_slices_is_a_collective_that_ends_with_its_receive():
    work = module_work(read_module(MEGASCALE), Mesh.parse("replica=2,fsdp=4"))
    names = [i.name if isinstance(i, HloOp) else i for i in work.block]
    assert names == ["send", "y", Wait("send")]
    wire = by_name(work)["send"].op.collective
    assert (work.devices, wire.kind, wire.axes) == (8, "all_reduce", ("replica",))
    assert wire.bytes == 64 * 128 * 4
    (listed,) = read_collectives(MEGASCALE)
    assert (listed.done, listed.groups[1]) == ("recv-done", (1, 5))


def test_a_transfer_to_the_host_runs_on_the_host_link():
    text = MEGASCALE.replace("_xla_megascale_transfer_type", "other").replace(
        "_xla_megascale_target", "another"
    )
    work = module_work(read_module(text))
    sent = by_name(work)["send"].op
    assert (sent.stream, sent.host_bytes >= 64 * 128 * 4) == ("host", True)


BRANCHES = (
    HEADER
    + """%small (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p)
}

%large (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %d = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={}, rhs_contracting_dims={}
  ROOT %r = f32[8]{0} reduce(%d, %p), dimensions={0}, to_apply=%add
}

ENTRY %main (i: s32[], x: f32[8]) -> f32[8] {
  %i = s32[] parameter(0)
  %x = f32[8]{0} parameter(1)
  ROOT %c = f32[8]{0} conditional(%i, %x, %x), branch_computations={%small, %large}
}
"""
)


def test_a_conditional_counts_its_branch_with_the_most_to_do():
    work = module_work(read_module(BRANCHES))
    assert [item.name for item in work.ops] == ["d", "r"]
    assert work.work.flops("f32") == 2 * 8 * 8


PALLAS = (
    HEADER
    + """ENTRY %main (x: f32[64,128]) -> f32[64,128] {
  %x = f32[64,128]{1,0:T(8,128)} parameter(0)
  ROOT %k = f32[64,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"body":"...","cost_estimate":{"flops":"4096"}}}
}
"""
)


def test_a_kernel_counts_what_its_author_says():
    (kernel,) = module_work(read_module(PALLAS)).ops
    assert (kernel.op.op_class, kernel.op.flops) == ("matmul", {"f32": 4096})
    assert kernel.op.hbm_bytes == 2 * 64 * 128 * 4
