"""Compiled programs on a slice: cycles over the clock, bytes over the bandwidth, what is hidden."""

from dataclasses import replace

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.profiler.hlo import module_work, read_module
from shardwise.profiler.timeline import schedule
from shardwise.roofline.collectives import collective_seconds
from shardwise.roofline.stacks import IDEAL
from shardwise.sharding import Mesh

V5E = load_chip("v5e")
CLOCK = 1.5e9
MESH = Mesh.parse("data=2,tensor=2")


def cycles(seconds, clock=CLOCK):
    estimate = f'"estimated_cycles":"{round(seconds * clock)}"'
    return f'backend_config={{"window_config":{{{estimate}}}}}'


def compute(name, operand, seconds, shape="f32[8,128]{1,0:T(8,128)S(1)}"):
    """An op in VMEM alone, which takes what the compiler says."""
    return f"%{name} = {shape} negate(%{operand}), {cycles(seconds)}"


def program(*lines, before=""):
    body = "\n".join(f"  {line}" for line in lines)
    text = (
        f"HloModule m, is_scheduled=true, num_partitions=4\n\n{before}ENTRY %main () -> f32[] {{\n"
    )
    return text + "  %x = f32[8,128]{1,0:T(8,128)S(1)} parameter(0)\n" + body + "\n}\n"


def run(*lines, before="", on="v5e:2x2", mesh=MESH):
    return schedule(module_work(read_module(program(*lines, before=before)), mesh), parse_slice(on))


def rows(timeline):
    return {row.op.name: row for row in timeline.rows}


GATHERED = "bf16[4096,8192]{1,0:T(8,128)(2,1)S(1)}"
START = (
    f"%ag = (bf16[2048,8192]{{1,0:S(1)}}, {GATHERED}) all-gather-start(%x), channel_id=1, "
    "replica_groups=[2,2]<=[4], dimensions={0}"
)
DONE = f"%agd = {GATHERED} all-gather-done(%ag)"


def wire_seconds(axes, size, kind="all_gather", piece="v5e:2x2"):
    """Seconds at the rate that large messages reach, and the latency."""
    links = place(parse_slice(piece), dict(MESH)).axes
    bare = collective_seconds(kind, size, [links[axis] for axis in axes])
    return float(bare.bandwidth) / V5E.efficiency.network + float(bare.latency)


def test_cycles_over_the_clock():
    found = run(compute("a", "x", 40e-6), compute("b", "a", 2e-6))
    assert found.expected == pytest.approx(42e-6)
    assert rows(found)["a"].bound_by == "cycles"
    assert [span.start for span in found.spans] == pytest.approx([0, 40e-6])


@pytest.mark.parametrize(("chip", "clock"), [("v5p:2x2x1", 1.75e9), ("v6e:2x2", 1.75e9)])
def test_each_chip_has_its_own_clock(chip, clock):
    found = run(compute("a", "x", 40e-6, "f32[8,128]{1,0:T(8,128)S(1)}"), on=chip)
    assert found.expected == pytest.approx(40e-6 * CLOCK / clock)


def test_bytes_over_the_bandwidth_where_that_is_longer():
    size = 4096 * 8192 * 4
    line = f"%a = f32[4096,8192]{{1,0:T(8,128)}} broadcast(%x), dimensions={{}}, {cycles(1e-6)}"
    found = run(line)
    assert found.lower == pytest.approx(size / V5E.hbm_bandwidth, rel=1e-3)
    assert found.expected == pytest.approx(found.lower / V5E.efficiency.hbm)
    assert rows(found)["a"].bound_by == "HBM"


def test_a_collective_is_hidden_by_what_runs_before_its_done():
    seconds = wire_seconds(("tensor",), 4096 * 8192 * 2)
    found = run(START, compute("a", "x", 2 * seconds), DONE)
    assert rows(found)["ag"].seconds == pytest.approx(seconds)
    assert found.exposed_communication == 0
    assert found.expected == pytest.approx(2 * seconds)
    assert found.upper == pytest.approx(3 * seconds)
    assert found.streams["net:tensor"] == pytest.approx(seconds)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75])
def test_what_is_not_hidden_is_exposed(share):
    seconds = wire_seconds(("tensor",), 4096 * 8192 * 2)
    found = run(START, compute("a", "x", share * seconds), DONE, compute("b", "agd", 1e-6))
    assert found.exposed_communication == pytest.approx((1 - share) * seconds, rel=1e-3)
    assert rows(found)["ag"].exposed == pytest.approx((1 - share) * seconds, rel=1e-3)
    assert found.expected == pytest.approx(seconds + 1e-6, rel=1e-3)


def test_a_synchronous_collective_stops_the_compute_stream():
    line = (
        f"%ar = {GATHERED} all-reduce(%x), channel_id=1, replica_groups=[2,2]<=[4], to_apply=%add"
    )
    found = run(compute("a", "x", 1e-6), line, compute("b", "ar", 1e-6))
    seconds = wire_seconds(("tensor",), 4096 * 8192 * 2, "all_reduce")
    assert found.exposed == pytest.approx({"net:tensor": seconds})
    assert found.expected == pytest.approx(seconds + 2e-6)
    assert found.idle == pytest.approx(seconds)


def two_gathers(second_groups):
    other = START.replace("%ag ", "%ah ").replace("channel_id=1", "channel_id=2")
    other = other.replace("[2,2]<=[4]", second_groups)
    found = run(START, other, DONE, DONE.replace("%agd", "%ahd").replace("(%ag)", "(%ah)"))
    return found.expected


def test_one_axis_is_one_stream_and_two_axes_are_two():
    one = wire_seconds(("tensor",), 4096 * 8192 * 2)
    assert two_gathers("[2,2]<=[4]") == pytest.approx(2 * one)
    assert two_gathers("[2,2]<=[2,2]T(1,0)") == pytest.approx(one)


COUNTED = """%body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[]{:S(6)}, f32[8,128]{1,0:S(1)}) parameter(0)
  %i = s32[]{:S(6)} get-tuple-element(%p), index=0
  %v = f32[8,128]{1,0:S(1)} get-tuple-element(%p), index=1
  %one = s32[]{:S(6)} constant(1)
  %next = s32[]{:S(6)} add(%i, %one)
  START
  INNER
  DONE
  ROOT %t = (s32[]{:S(6)}, f32[8,128]{1,0:S(1)}) tuple(%next, %v)
}

%condition (p: (s32[], f32[8,128])) -> pred[] {
  %p = (s32[]{:S(6)}, f32[8,128]{1,0:S(1)}) parameter(0)
  %i = s32[]{:S(6)} get-tuple-element(%p), index=0
  %n = s32[]{:S(6)} constant(7)
  ROOT %lt = pred[]{:S(6)} compare(%i, %n), direction=LT
}

"""
LOOP = (
    "%zero = s32[]{:S(6)} constant(0)",
    "%init = (s32[]{:S(6)}, f32[8,128]{1,0:S(1)}) tuple(%zero, %x)",
    "%loop = (s32[]{:S(6)}, f32[8,128]{1,0:S(1)}) while(%init), condition=%condition, body=%body",
)


def loop(inner, start="", done=""):
    return COUNTED.replace("INNER", inner).replace("START", start).replace("DONE", done)


def test_a_loop_runs_its_rounds_and_each_waits_for_its_own():
    seconds = wire_seconds(("tensor",), 4096 * 8192 * 2)
    inside = loop(compute("a", "v", seconds / 4), START.replace("%x", "%v"), DONE)
    found = run(*LOOP, before=inside)
    assert found.expected == pytest.approx(7 * seconds, rel=1e-3)
    assert found.exposed_communication == pytest.approx(7 * 0.75 * seconds, rel=1e-3)
    assert found.streams["net:tensor"] == pytest.approx(7 * seconds)
    (whole,) = (span for span in found.spans if span.times > 1)
    assert (whole.name, whole.times) == ("loop", 7)


def test_a_collective_may_be_hidden_by_a_whole_loop():
    seconds = wire_seconds(("tensor",), 4096 * 8192 * 2)
    found = run(START, *LOOP, DONE, before=loop(compute("a", "v", seconds / 5)))
    assert found.exposed_communication == 0
    assert found.expected == pytest.approx(7 / 5 * seconds, rel=1e-3)


def test_a_loop_that_uses_the_same_axis_holds_up_what_is_under_way():
    seconds = wire_seconds(("tensor",), 4096 * 8192 * 2)
    inner = START.replace("%ag ", "%ah ").replace("%x", "%v")
    ended = DONE.replace("%agd", "%ahd").replace("(%ag)", "(%ah)")
    found = run(START, *LOOP, DONE, before=loop("", inner, ended))
    assert found.expected == pytest.approx(8 * seconds, rel=1e-3)


def test_copies_run_beside_compute_and_share_its_memory():
    big = "f32[4096,1024]{1,0:T(8,128)"
    copy = f"%c = ({big}S(1)}}, {big}}}, u32[]{{:S(2)}}) copy-start(%w)"
    given = f"%w = {big}}} parameter(1)"
    seconds = 4096 * 1024 * 4 / V5E.hbm_bandwidth / V5E.efficiency.hbm
    done = f"%cd = {big}S(1)}} copy-done(%c)"
    hidden = run(given, copy, compute("a", "x", 3 * seconds), done)
    assert hidden.expected == pytest.approx(3 * seconds, rel=1e-3)
    assert hidden.exposed == {}
    bare = run(given, copy, done)
    assert bare.exposed == pytest.approx({"copy": seconds})
    # A kernel bound by the same memory: together they take as long as one after the other.
    busy = run(given, copy, f"%a = {big}}} broadcast(%x), dimensions={{}}, {cycles(1e-9)}", done)
    assert busy.expected == pytest.approx(2 * seconds, rel=1e-3)


PRODUCT = (
    "%a = {0}[4096,4096]{{1,0:T(8,128)S(1)}} parameter(1)",
    "%b = {1}[4096,4096]{{1,0:T(8,128)S(1)}} convolution(%a, %a), dim_labels=bf_io->bf, ",
)


def product(dtype, out, seconds, on, precision=""):
    given, line = (part.format(dtype, out) for part in PRODUCT)
    return run(given, line + precision + cycles(seconds), on=on)


def test_cycles_of_8_bit_products_on_v6e_are_not_trusted():
    flops = 2 * 4096**3
    found = product("s8", "s32", 1e-2, "v6e:2x2")
    chip = load_chip("v6e")
    assert found.lower == pytest.approx(flops / chip.peak("int8"))
    assert found.expected < 3 * found.lower  # not the 130 times that the cycles say
    assert rows(found)["b"].bound_by == "math"
    assert product("s8", "s32", 1e-2, "v5e:2x2").expected == pytest.approx(1e-2)
    assert product("bf16", "bf16", 1e-2, "v6e:2x2").expected > 8e-3


@pytest.mark.parametrize(("precision", "times"), [("", 1), ("operand_precision={highest,high}", 6)])
def test_float32_products_are_bf16_passes_on_a_tpu(precision, times):
    found = product("f32", "f32", 1e-9, "v5e:2x2", f"{precision}, " if precision else "")
    assert found.lower == pytest.approx(times * 2 * 4096**3 / V5E.peak("bf16"))


def test_utilisation():
    seconds = 2 * 4096**3 / V5E.peak("bf16")
    found = product("bf16", "bf16", 2 * seconds, "v5e:2x2")
    assert found.hfu == pytest.approx(0.5)
    assert found.mfu(model_flops=4 * 2 * 4096**3 / 2) == pytest.approx(0.25)
    (row,) = found.rows
    assert (row.of_roofline, row.intensity) == (pytest.approx(0.5), float("inf"))


def test_a_stack_launches_the_kernels_of_a_gpu():
    kernels = ("%a = f32[4096,4096]{1,0} broadcast(%x)", "%b = f32[4096,4096]{1,0} negate(%a)")
    text = program(*kernels).replace("{1,0:T(8,128)S(1)}", "{1,0}")
    work, piece = module_work(read_module(text), MESH), parse_slice("h100:4")
    bare = schedule(work, piece).expected
    slow = replace(IDEAL, launch_seconds=5e-6, passes=3.0)
    assert schedule(work, piece, slow).expected == pytest.approx(bare + 10e-6)


def test_bounds_stand_in_order():
    found = run(START, compute("a", "x", 1e-6), DONE, compute("b", "agd", 5e-6))
    assert found.lower <= found.expected <= found.upper


def test_unknown_ops_and_loops_without_an_end_are_named():
    inside = loop("%q = f32[8,128]{1,0:S(1)} made-up(%v)").replace("constant(7)", "copy(%i)")
    found = run(*LOOP, before=inside)
    assert found.uncounted == ("loop",)
    assert [item.name for item in found.unknown] == ["q"]


def test_a_slice_of_another_size_is_refused():
    with pytest.raises(BadRequest, match="runs on 4 devices and 'v5e:4x4' has 16; name the slice"):
        run(compute("a", "x", 1e-6), on="v5e:4x4")


def permute(name, pairs, channel):
    shape = "bf16[4096,8192]{1,0:T(8,128)(2,1)S(1)}"
    text = ",".join(f"{{{a},{b}}}" for a, b in pairs)
    start = f"%{name} = ({shape}, {shape}) collective-permute-start(%x), channel_id={channel}"
    pairs_of = f"source_target_pairs={{{text}}}"
    return f"{start}, {pairs_of}", f"%{name}d = {shape} collective-permute-done(%{name})"


RING = Mesh.parse("tensor=4")
ON = ((0, 1), (1, 2), (2, 3), (3, 0))
BACK = ((0, 3), (1, 0), (2, 1), (3, 2))


def two_permutes(first, second, mesh=RING):
    (a, a_done), (b, b_done) = permute("a", first, 1), permute("b", second, 2)
    text = program(a, b, a_done, b_done)
    return schedule(module_work(read_module(text), mesh), parse_slice("v5e:2x2"))


def test_permutes_the_two_ways_round_run_at_once():
    one, other = two_permutes(ON, ON), two_permutes(ON, BACK)
    assert other.expected == pytest.approx(one.expected / 2)
    assert other.lower == pytest.approx(one.lower / 2)
    assert [span.start for span in other.spans] == [0, 0]


def test_a_permute_halfway_round_takes_both_ways():
    half = ((0, 2), (1, 3), (2, 0), (3, 1))
    assert two_permutes(half, ON).expected > 1.5 * two_permutes(BACK, ON).expected


def test_a_gather_takes_both_ways():
    (a, a_done), groups = permute("a", ON, 1), "replica_groups=[1,4]<=[4]"
    start = START.replace("replica_groups=[2,2]<=[4]", groups).replace(
        "channel_id=1", "channel_id=3"
    )
    text = program(a, start, a_done, DONE)
    found = schedule(module_work(read_module(text), RING), parse_slice("v5e:2x2"))
    assert found.expected == pytest.approx(sum(row.seconds for row in found.rows))


@pytest.mark.parametrize(("on", "rate"), [("v5e:2x2", 8 * 128 * 4 * 1.5e9), ("h100:4", 33.5e12)])
def test_elementwise_work_keeps_an_alu_for_a_cycle(on, rate):
    """One operation per ALU and cycle, whether or not the peak counts a multiply-add as two."""
    line = "%n = f32[8,128]{1,0:T(8,128)S(1)} negate(%x)"
    (row,) = run(line, on=on).rows
    assert (row.bound_by, row.seconds) == ("vector", pytest.approx(8 * 128 / rate))


def permuted(pairs):
    """Seconds of one permute of 64 MiB over 16 devices of a v5e."""
    written = ",".join(f"{{{a},{b}}}" for a, b in pairs)
    hlo = (
        "HloModule f, is_scheduled=true, num_partitions=16\n\n"
        "ENTRY %main (x: bf16[4096,8192]) -> bf16[4096,8192] {\n"
        "  %x = bf16[4096,8192]{1,0} parameter(0)\n"
        "  ROOT %p = bf16[4096,8192]{1,0} collective-permute(%x), channel_id=1, "
        f"source_target_pairs={{{written}}}\n}}\n"
    )
    work = module_work(read_module(hlo), Mesh.parse("X=4,Y=4"))
    return schedule(work, parse_slice("v5e:4x4")).expected


def test_a_permute_takes_the_time_of_what_its_pairs_move():
    """A transpose sends blocks up to three places along each axis; a shift sends each one place."""
    shift = permuted([(4 * i + j, 4 * i + (j + 1) % 4) for i in range(4) for j in range(4)])
    transpose = permuted([(4 * i + j, 4 * j + i) for i in range(4) for j in range(4)])
    two = permuted([(4 * i + j, 4 * i + (j + 2) % 4) for i in range(4) for j in range(4)])
    assert transpose > 2 * shift
    assert two > 1.2 * shift
