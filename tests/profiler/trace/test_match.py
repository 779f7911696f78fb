"""Seconds of a capture on the ops of a compiled program."""

import pytest

from shardwise.errors import BadRequest
from shardwise.profiler.hlo import module_work, read_module
from shardwise.profiler.trace import measure, trace_of
from shardwise.profiler.trace.events import TraceEvent, TraceLine

TEXT = """HloModule jit_f, is_scheduled=true, num_partitions=2

%sum (l: f32[], r: f32[]) -> f32[] {
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  ROOT %add = f32[] add(%l, %r)
}

%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %p = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,8]{1,0} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %dot.1 = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[8,8]{1,0}) tuple(%next, %dot.1)
}

%condition (q: (s32[], f32[8,8])) -> pred[] {
  %q = (s32[], f32[8,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %most = s32[] constant(3)
  ROOT %less = pred[] compare(%j, %most), direction=LT
}

ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,8]{1,0}) tuple(%zero, %a)
  %while.2 = (s32[], f32[8,8]{1,0}) while(%start), condition=%condition, body=%body
  %out = f32[8,8]{1,0} get-tuple-element(%while.2), index=1
  %all-reduce-start.3 = f32[8,8]{1,0} all-reduce-start(%out), replica_groups={{0,1}}, to_apply=%sum
  ROOT %all-reduce-done.3 = f32[8,8]{1,0} all-reduce-done(%all-reduce-start.3)
}
"""


def capture(*events, module="jit_f", runs=(1,)):
    """A CPU's line of (name, start, seconds) for each run, ten seconds apart."""
    found = [
        TraceEvent(
            name=name,
            start=10.0 * run + start,
            seconds=seconds,
            stats={"hlo_op": name, "hlo_module": module, "run_id": run, "device_ordinal": 0},
        )
        for run in runs
        for name, start, seconds in events
    ]
    return trace_of("t", [TraceLine(plane="/host:CPU", name="a", events=tuple(found))])


STEP = [
    ("while.2", 0, 4),
    ("dot.1", 0, 1),
    ("dot.1", 1, 1),
    ("dot.1", 2, 1.5),
    ("all-reduce-start.3", 4, 0.25),
    ("all-reduce-done.3", 5, 0.5),
]


@pytest.fixture
def program():
    module = read_module(TEXT)
    return module_work(module), module


def seconds(measured):
    return {op.op.name: op.seconds for op in measured.ops if op.seconds}


@pytest.mark.parametrize("runs", [(1,), (1, 2, 3)])
def test_ops_get_their_seconds_per_step_and_a_done_counts_to_its_start(program, runs):
    measured = measure(capture(*STEP, runs=runs), *program)
    assert seconds(measured) == pytest.approx({"dot.1": 3.5, "all-reduce-start.3": 0.75})
    assert {op.op.name: op.events for op in measured.ops}["dot.1"] == pytest.approx(3)
    assert measured.runs == len(runs)
    assert measured.step_seconds == pytest.approx(5.5)
    assert measured.unmatched == {}


def test_what_no_instruction_is_named_is_listed_with_its_seconds(program):
    measured = measure(capture(*STEP, ("cublas.7", 6, 2), ("infeed", 8, 1)), *program)
    assert measured.unmatched == pytest.approx({"cublas.7": 2, "infeed": 1})
    assert measured.unmatched_seconds == pytest.approx(3)
    assert measured.matched_seconds == pytest.approx(4.25)


def test_ops_that_no_event_names_are_silent(program):
    measured = measure(capture(*STEP[:4]), *program)
    assert "all-reduce-start.3" in measured.silent
    assert "dot.1" not in measured.silent


def test_other_modules_of_the_capture_count_nothing(program):
    both = capture(*STEP).ops + capture(("dot.1", 0, 100), module="jit_other").ops
    trace = capture(*STEP)
    measured = measure(type(trace)(path="t", ops=both), *program)
    assert seconds(measured)["dot.1"] == pytest.approx(3.5)


def test_a_capture_of_another_program_is_refused(program):
    with pytest.raises(BadRequest, match=r"is of another program: none of its ops .* 'jit_g'"):
        measure(capture(("convolution.5", 0, 1), module="jit_g"), *program)
