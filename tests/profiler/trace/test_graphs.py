"""CUDA graphs in captures. The captures are synthetic: made of a program's priced ops, in the two
forms in which profilers write graphs, an event for each kernel or one for the whole graph."""

import json

import pytest

import shardwise as sw
from shardwise.commands.program.graphs import captured_without
from shardwise.hardware import parse_slice
from shardwise.profiler.hlo import module_work, read_module
from shardwise.profiler.timeline import schedule
from shardwise.profiler.trace.graphs import command_buffers, told_apart

TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=1

%gelu (p: bf16[8192,8192]) -> bf16[8192,8192] {
  %p = bf16[8192,8192]{1,0} parameter(0)
  ROOT %t = bf16[8192,8192]{1,0} tanh(%p)
}

%scale (q: bf16[8192,2048]) -> bf16[8192,2048] {
  %q = bf16[8192,2048]{1,0} parameter(0)
  ROOT %n = bf16[8192,2048]{1,0} negate(%q)
}

%command_buffer (x: bf16[8192,2048], u: bf16[2048,8192], d: bf16[8192,2048]) -> bf16[8192,2048] {
  %x = bf16[8192,2048]{1,0} parameter(0)
  %u = bf16[2048,8192]{1,0} parameter(1)
  %d = bf16[8192,2048]{1,0} parameter(2)
  %dot.1 = bf16[8192,8192]{1,0} dot(%x, %u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %loop_tanh_fusion = bf16[8192,8192]{1,0} fusion(%dot.1), kind=kLoop, calls=%gelu
  %g = bf16[8192,8192]{1,0} bitcast(%loop_tanh_fusion)
  ROOT %dot.2 = bf16[8192,2048]{1,0} dot(%g, %d), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: bf16[8192,2048], b: bf16[2048,8192], c: bf16[8192,2048]) -> bf16[8192,2048] {
  %a = bf16[8192,2048]{1,0} parameter(0)
  %b = bf16[2048,8192]{1,0} parameter(1)
  %c = bf16[8192,2048]{1,0} parameter(2)
  %call.3 = bf16[8192,2048]{1,0} call(%a, %b, %c), to_apply=%command_buffer
  ROOT %loop_negate_fusion = bf16[8192,2048]{1,0} fusion(%call.3), kind=kLoop, calls=%scale
}
"""
KERNELS = {
    "dot.1": "nvjet_tst_128x256_64x4_2x1_v_bz_TNT",
    "loop_tanh_fusion": "loop_tanh_fusion",
    "dot.2": "nvjet_tst_128x256_64x4_2x1_v_bz_TNT",
    "loop_negate_fusion": "loop_negate_fusion",
}
SLOWER = 1.25
"""What kernels of these captures take, over what the ops are priced at."""


def priced():
    work = module_work(read_module(TEXT))
    return schedule(work, parse_slice("h100:1"))


def written(folder, whole):
    """A synthetic capture of two steps, as Chrome's JSON, and the program's text."""
    rows, at, gap = [], 0.0, 2e-7
    for _ in range(2):
        for row in priced().rows:
            name, seconds = row.op.name, SLOWER * row.per_step
            inside = row.op.computation == "command_buffer"
            op = "call.3" if inside else name
            rows.append(((op, KERNELS[name]), at, seconds))
            at += seconds + gap
    if whole:  # the three kernels of a graph are one event
        rows = [
            r
            for i in (0, 4)
            for r in (
                (
                    ("call.3", "CudaGraphExec:7"),
                    rows[i][1],
                    rows[i + 2][1] + rows[i + 2][2] - rows[i][1],
                ),
                rows[i + 3],
            )
        ]
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": 13,
            "name": kernel,
            "ts": 1e6 * start,
            "dur": 1e6 * seconds,
            "args": {"hlo_op": op, "hlo_module": "jit_step", "cuda_graph_id": 7},
        }
        for (op, kernel), start, seconds in rows
    ]
    names = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 13, "name": "thread_name", "args": {"name": "Stream #13"}},
    ]
    (folder / "synthetic.trace.json").write_text(json.dumps({"traceEvents": [*names, *events]}))
    (folder / "step.hlo").write_text(TEXT)
    return folder / "synthetic.trace.json", folder / "step.hlo"


def test_each_kernel_of_a_graph_is_an_op_with_its_share_of_the_roofline(tmp_path):
    trace, hlo = written(tmp_path, whole=False)
    found = sw.profile(capture=trace, hlo=hlo, on="h100:1")
    assert {row.where for row in found.by_op} == set(KERNELS)
    timeline = priced()
    least = {row.op.name: row.lower * row.count for row in timeline.rows}
    for row in found.by_op:
        assert row.of_roofline == pytest.approx(least[row.where] / row.measured, rel=1e-6)
        assert 0.3 < row.of_roofline < 1
    assert not found.unmatched
    total = sum(row.measured for row in found.by_op)
    assert total == pytest.approx(found.step_seconds.measured, rel=0.03)
    assert found.step_seconds.of_roofline == pytest.approx(
        timeline.lower / found.step_seconds.measured
    )


def test_a_graph_that_is_one_event_is_one_row_and_said_so(tmp_path):
    trace, hlo = written(tmp_path, whole=True)
    found = sw.profile(capture=trace, hlo=hlo, on="h100:1")
    rows = {row.where: row for row in found.by_op}
    assert set(rows) == {"call.3 (a CUDA graph of 3 ops)", "loop_negate_fusion"}
    graph = rows["call.3 (a CUDA graph of 3 ops)"]
    assert graph.measured == pytest.approx(
        SLOWER * sum(r.per_step for r in priced().rows if r.op.name != "loop_negate_fusion"),
        rel=0.01,
    )
    assert 0.3 < graph.of_roofline < 1
    total = sum(row.measured for row in found.by_op)
    assert total == pytest.approx(found.step_seconds.measured, rel=0.03)
    (note,) = found.warnings
    assert "1 CUDA graph of 3 ops" in note
    assert "--xla_gpu_enable_command_buffer=" in note
    assert not found.silent_ops
    # Without a chip an op has its share by the bytes that it moves.
    plain = sw.profile(capture=trace, hlo=hlo)
    assert "by the bytes that they move" in plain.warnings[0]
    spent = {row.where: row.measured for row in plain.by_class}
    assert sum(spent.values()) == pytest.approx(total)


def test_a_program_names_its_command_buffers():
    module = read_module(TEXT)
    (buffer,) = command_buffers(module_work(module), module).values()
    assert (buffer.name, buffer.runs) == ("call.3", 1)
    assert [item.name for item in buffer.ops] == ["dot.1", "loop_tanh_fusion", "dot.2"]


@pytest.mark.parametrize(
    ("kernels", "ops", "said"),
    [
        (["a_1", "b_2"], ["a.1", "b.2"], ["a.1", "b.2"]),
        (["a_1", "b_2"] * 2, ["a.1", "b.2"], ["a.1", "b.2"] * 2),  # of two rounds of a loop
        (["add_1", "add_1"], ["add.1", "add.2"], ["add.1", "add.2"]),  # equal ops share a kernel
        (["lib", "lib2", "a_1"], ["dot", "a.1"], ["dot", "dot", "a.1"]),  # two kernels of one op
        (["x", "a_1", "y"], ["dot", "a.1", "dot.2", "dot.3"], ["dot", "a.1", ""]),
        (["b_2", "a_1"], ["a.1", "b.2"], ["b.2", "a.1"]),  # another order: by name
    ],
)
def test_kernels_are_told_apart(kernels, ops, said):
    assert told_apart(kernels, ops) == said


def test_what_was_switched_off_is_said_with_its_cost():
    (said,) = captured_without([0.010, 0.010, 0.011], [0.012, 0.012])
    assert "a step takes 12 ms, 20% longer than the 10 ms with graphs" in said
    assert captured_without([0.01], []) == []  # not a GPU: the program is the same
