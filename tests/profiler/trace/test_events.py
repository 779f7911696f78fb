"""Captures of TPUs, GPUs and CPUs as lines of events: which are ops, and whose seconds they are."""

import pytest

from shardwise.errors import BadRequest
from shardwise.profiler.trace.events import (
    TraceEvent,
    TraceLine,
    instruction_name,
    opcode_of,
    trace_of,
)


def event(name, start, seconds, **stats):
    return TraceEvent(name=name, start=start, seconds=seconds, stats=stats)


def line(plane, name, *events):
    return TraceLine(plane=plane, name=name, events=events)


def cpu(name, start, seconds, run=1, device=0):
    stats = {"hlo_op": name, "hlo_module": "jit_f", "run_id": run, "device_ordinal": device}
    return event(name, start, seconds, **stats)


def seconds(trace):
    return {op.name: op.own for op in trace.ops}


def test_a_tpu_has_its_ops_and_runs_on_lines_of_their_own():
    plane = "/device:TPU:3"
    trace = trace_of(
        "t",
        [
            line(plane, "XLA Modules", event("jit_f(77)", 0, 1), event("jit_f(77)", 2, 1.5)),
            line(
                plane,
                "XLA Ops",
                event(
                    "%fusion.1 = bf16[8]{0} fusion(%a)",
                    0.25,
                    0.5,
                    hlo_category="convolution fusion",
                    tf_op="jit(f)/ffw/dot_general:",
                    source="a.py:3",
                ),
                event("copy.2", 2.5, 1),
            ),
            line(plane, "Steps", event("1", 0, 1)),
        ],
    )
    first, second = trace.ops
    assert (first.name, first.module, first.device) == ("fusion.1", "jit_f", 3)
    assert (first.category, first.op_name) == ("convolution fusion", "jit(f)/ffw/dot_general")
    assert first.source == "a.py:3"
    assert first.run != second.run
    assert sorted(trace.spans.values()) == [0.5, 1]


def test_kernels_of_a_gpu_count_once():
    plane = "/device:GPU:1"
    stats = {"hlo_op": "fusion.1", "hlo_module": "jit_f"}
    trace = trace_of(
        "t",
        [
            line(plane, "Stream #13(Compute)", event("kernel_7", 0, 2, **stats)),
            line(plane, "XLA Ops", event("fusion.1", 0, 2, **stats)),
            line(plane, "Stream #14(MemcpyD2D)", event("memcpy", 0, 1)),
        ],
    )
    assert [(op.name, op.device, op.line) for op in trace.ops] == [
        ("fusion.1", 1, "Stream #13(Compute)")
    ]


def test_an_event_around_others_has_only_what_they_leave():
    trace = trace_of(
        "t",
        [line("/host:CPU", "a", cpu("call_op.1", 0, 10), cpu("dot.1", 1, 4), cpu("add.2", 6, 3))],
    )
    assert seconds(trace) == {"call_op.1": 3, "dot.1": 4, "add.2": 3}


def test_a_loop_whose_body_runs_on_another_thread_has_no_seconds():
    trace = trace_of(
        "t",
        [
            line("/host:CPU", "a", cpu("while.3", 0, 10)),
            line("/host:CPU", "b", cpu("dot.1", 1, 4), cpu("dot.1", 5, 4)),
        ],
    )
    assert sum(op.own for op in trace.ops) == 8
    assert trace.step_seconds == 10


def test_runs_and_devices_are_told_apart_and_the_step_is_their_median():
    ops = [
        cpu("dot.1", start, length, run=run, device=device)
        for run, device, start, length in ((1, 0, 0, 1), (1, 1, 0, 2), (2, 0, 5, 3), (2, 1, 5, 4))
    ]
    trace = trace_of("t", [line("/host:CPU", "a", *ops[::2]), line("/host:CPU", "b", *ops[1::2])])
    assert trace.devices == 2
    assert trace.step_seconds == 2.5


def test_runs_of_a_gpu_begin_where_its_first_op_comes_again():
    def kernel(name, start):
        return event(name, start, 0.5, hlo_op=name, hlo_module="jit_f")

    loops = [kernel(n, 20 * i + j) for i in range(3) for j, n in enumerate("abbcdefghijk")]
    stream = line("/device:GPU:0", "Stream #14", *loops, kernel("branch", 19))
    trace = trace_of("t", [stream])
    assert [len([op for op in trace.ops if op.run == run]) for run in "123"] == [13, 12, 12]
    assert trace.step_seconds == 11.5
    alone = trace_of("t", [line("/device:GPU:0", "Stream #14", *map(kernel, "abb", range(3)))])
    assert len(alone.spans) == 1


def test_a_capture_without_ops_says_so():
    with pytest.raises(BadRequest, match=r"trace 't' has 1 events and none of a compiled op"):
        trace_of("t", [line("/host:CPU", "python", event("foo", 0, 1))])


@pytest.mark.parametrize(
    ("text", "name", "opcode"),
    [
        ("%fusion.1 = f32[2]{0} fusion(%a), kind=kLoop", "fusion.1", "fusion"),
        ("all-gather-start.12", "all-gather-start.12", "all-gather-start"),
        ("while.3.remat", "while.3.remat", "while"),
        ("dot", "dot", "dot"),
    ],
)
def test_names_of_instructions(text, name, opcode):
    assert instruction_name(text) == name
    assert opcode_of(name) == opcode
