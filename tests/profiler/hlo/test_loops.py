"""Trip counts: start, step and bound wherever XLA leaves them; loops that data ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.profiler.hlo import read_module, trip_counts

PLAIN = """HloModule m, is_scheduled=true

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{{0}} get-tuple-element(%p), index=1
  %step = s32[] constant({step})
  %i.copy = s32[] copy(%i)
  %next = s32[] {add}(%i.copy, %step)
  ROOT %t = (s32[], f32[8]{{0}}) tuple(%next, %x)
}}

%condition (p: (s32[], f32[8])) -> pred[] {{
  %p = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant({bound})
  ROOT %lt = pred[] compare({operands}), direction={direction}
}}

ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  %zero = s32[] constant({start})
  %held = s32[] copy(%zero)
  %init = (s32[], f32[8]{{0}}) tuple(%held, %a)
  %loop = (s32[], f32[8]{{0}}) while(%init), condition=%condition, body=%body
  ROOT %out = f32[8]{{0}} get-tuple-element(%loop), index=1
}}
"""


def count(start, step, direction, bound, flipped=False):
    text = PLAIN.format(
        start=start,
        step=abs(step),
        add="add" if step > 0 else "subtract",
        direction=direction,
        bound=bound,
        operands="%n, %i" if flipped else "%i, %n",
    )
    return trip_counts(read_module(text))["main", "loop"]


STAY = {
    "LT": int.__lt__,
    "LE": int.__le__,
    "GT": int.__gt__,
    "GE": int.__ge__,
    "NE": int.__ne__,
}
MIRROR = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@given(
    st.integers(-20, 20),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(sorted(STAY)),
    st.integers(-20, 20),
    st.booleans(),
)
def test_counts_are_those_of_the_loop_run_by_hand(start, step, down, direction, bound, flipped):
    step = -step if down else step
    rounds, i = 0, start
    while STAY[direction](i, bound) and rounds <= 100:
        rounds, i = rounds + 1, i + step
    want = rounds if rounds <= 100 else None
    direction = MIRROR[direction] if flipped else direction
    assert count(start, step, direction, bound, flipped) == want


def test_a_note_of_the_compiler_wins():
    text = PLAIN.format(
        start=0, step=1, add="add", direction="LT", bound=9, operands="%i, %n"
    ).replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    assert trip_counts(read_module(text)) == {("main", "loop"): 5}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%n = s32[] constant(9)", "%n = s32[] get-tuple-element(%p), index=1"),
        ("%zero = s32[] constant(0)", "%zero = s32[] parameter(1)"),
        ("%step = s32[] constant(1)", "%step = s32[] get-tuple-element(%p), index=1"),
        ("constant(9)", "constant(9.5)"),
    ],
)
def test_what_data_decides_has_no_count(old, new):
    text = PLAIN.format(start=0, step=1, add="add", direction="LT", bound=9, operands="%i, %n")
    assert old in text
    assert trip_counts(read_module(text.replace(old, new))) == {("main", "loop"): None}


@pytest.mark.parametrize(
    ("bound", "op_name", "want"),
    [
        ("get-tuple-element(%p), index=1", "jit(f)/attention/rounds_36/while", 36),
        ("get-tuple-element(%p), index=1", "jit(f)/transpose(jvp(rounds_36))/while", 36),
        ("get-tuple-element(%p), index=1", "jit(f)/rounds_36/body/while", None),
        ("constant(9)", "jit(f)/attention/rounds_36/while", 9),
    ],
)
def test_a_scope_says_the_rounds_of_a_loop_that_data_ends(bound, op_name, want):
    text = PLAIN.format(start=0, step=1, add="add", direction="LT", bound=9, operands="%i, %n")
    text = text.replace("%n = s32[] constant(9)", f"%n = s32[] {bound}")
    text = text.replace("body=%body", f'body=%body, metadata={{op_name="{op_name}"}}')
    assert trip_counts(read_module(text)) == {("main", "loop"): want}


FUSED = """HloModule m, is_scheduled=true

%compare (q.0: s32[], q.1: s32[]) -> pred[] {
  %q.0 = s32[] parameter(0)
  %q.1 = s32[] parameter(1)
  ROOT %c = pred[] compare(%q.0, %q.1), direction=LT
}

%more (r.0: s32[]) -> s32[] {
  %r.0 = s32[] parameter(0)
  %two = s32[] constant(2)
  ROOT %a = s32[] add(%r.0, %two)
}

%inner (p: (s32[], s32[])) -> (s32[], s32[]) {
  %p = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %begin = s32[] get-tuple-element(%p), index=1
  %next = s32[] fusion(%i), kind=kLoop, calls=%more
  ROOT %t = (s32[], s32[]) tuple(%next, %begin)
}

%inner_condition (p: (s32[], s32[])) -> pred[] {
  %p = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(7)
  ROOT %f = pred[] fusion(%i, %n), kind=kLoop, calls=%compare
}

%outer (p: (s32[], s32[])) -> (s32[], s32[]) {
  %p = (s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%p), index=0
  %begin = s32[] get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %init = (s32[], s32[]) tuple(%begin, %begin)
  %w = (s32[], s32[]) while(%init), condition=%inner_condition, body=%inner
  %after = s32[] get-tuple-element(%w), index=1
  %next = s32[] add(%j, %one)
  ROOT %t = (s32[], s32[]) tuple(%next, %after)
}

%outer_condition (p: (s32[], s32[])) -> pred[] {
  %p = (s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(3)
  ROOT %c = pred[] compare(%j, %n), direction=LT
}

ENTRY %main () -> s32[] {
  %zero = s32[] constant(0)
  %begin = s32[] constant(1)
  %init = (s32[], s32[]) tuple(%zero, %begin)
  %w = (s32[], s32[]) while(%init), condition=%outer_condition, body=%outer
  ROOT %out = s32[] get-tuple-element(%w), index=0
}
"""


def test_fused_counters_and_a_start_carried_through_an_outer_loop():
    """1, 3, 5 are below 7: the start is a constant of the entry, handed on by both loops."""
    assert trip_counts(read_module(FUSED)) == {("outer", "w"): 3, ("main", "w"): 3}
