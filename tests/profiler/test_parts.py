"""All-reduces that stand for gathers and scatters, told apart by what feeds and reads them."""

import pytest

from shardwise.profiler.hlo import read_collectives, read_module
from shardwise.profiler.hlo.parts import parts

HEAD = "HloModule m, is_scheduled=true, num_partitions=4\n\n"
TAIL = ", channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add"


def only(body, result="f32[8]", more=""):
    text = f"{HEAD}{more}ENTRY %main (p: f32[8], q: f32[2], i: s32[]) -> {result} {{\n{body}\n}}\n"
    module = read_module(text)
    (collective,) = read_collectives(module)
    return [(p.kind, p.form, p.bytes) for p in parts(module, collective)]


ARGUMENTS = """  %p = f32[8]{0} parameter(0)
  %q = f32[2]{0} parameter(1)
  %i = s32[] parameter(2)
"""


def test_a_plain_sum():
    body = f"{ARGUMENTS}  ROOT %sum = f32[8]{{0}} all-reduce(%p){TAIL}"
    assert only(body) == [("all_reduce", "itself", 32.0)]


def test_pieces_put_into_place_are_gathered():
    body = f"""{ARGUMENTS}  %zero = f32[] constant(0)
  %zeros = f32[8]{{0}} broadcast(%zero), dimensions={{}}
  %placed = f32[8]{{0}} dynamic-update-slice(%zeros, %q, %i)
  ROOT %sum = f32[8]{{0}} all-reduce(%placed){TAIL}"""
    assert only(body) == [("all_gather", "sum of pieces", 32.0)]


@pytest.mark.parametrize("also", [False, True])
def test_a_sum_of_which_only_a_slice_is_read_is_scattered(also):
    last = "  ROOT %out = (f32[2]{0}, f32[8]{0}) tuple(%piece, %sum)" if also else ""
    body = f"""{ARGUMENTS}  %sum = f32[8]{{0}} all-reduce(%p){TAIL}
  {"" if also else "ROOT "}%piece = f32[2]{{0}} dynamic-slice(%sum, %i), dynamic_slice_sizes={{2}}
{last}"""
    want = ("all_reduce", "itself") if also else ("reduce_scatter", "sum and slice")
    assert only(body) == [(*want, 32.0)]


def test_the_arrays_of_a_joined_sum_each_are_what_they_are():
    body = f"""{ARGUMENTS}  %zero = f32[] constant(0)
  %zeros = f32[8]{{0}} broadcast(%zero), dimensions={{}}
  %placed = f32[8]{{0}} dynamic-update-slice(%zeros, %q, %i)
  %sum = (f32[8]{{0}}, f32[8]{{0}}, f32[2]{{0}}) all-reduce(%placed, %p, %q){TAIL}
  %a = f32[8]{{0}} get-tuple-element(%sum), index=0
  %b = f32[8]{{0}} get-tuple-element(%sum), index=1
  %c = f32[2]{{0}} get-tuple-element(%sum), index=2
  %piece = f32[2]{{0}} dynamic-slice(%b, %i), dynamic_slice_sizes={{2}}
  ROOT %out = (f32[8]{{0}}, f32[2]{{0}}, f32[2]{{0}}) tuple(%a, %piece, %c)"""
    assert only(body) == [
        ("all_gather", "sum of pieces", 32.0),
        ("reduce_scatter", "sum and slice", 32.0),
        ("all_reduce", "itself", 8.0),
    ]


def test_a_piece_written_over_values_is_a_sum():
    body = f"""{ARGUMENTS}  %placed = f32[8]{{0}} dynamic-update-slice(%p, %q, %i)
  ROOT %sum = f32[8]{{0}} all-reduce(%placed){TAIL}"""
    assert only(body) == [("all_reduce", "itself", 32.0)]


def test_pieces_put_into_place_inside_a_fusion():
    fused = """%placing (a: f32[2], b: s32[]) -> f32[8] {
  %a = f32[2]{0} parameter(0)
  %b = s32[] parameter(1)
  %zero = f32[] constant(0)
  %zeros = f32[8]{0} broadcast(%zero), dimensions={}
  ROOT %placed = f32[8]{0} dynamic-update-slice(%zeros, %a, %b)
}

"""
    body = f"""{ARGUMENTS}  %made = f32[8]{{0}} fusion(%q, %i), kind=kLoop, calls=%placing
  ROOT %sum = f32[8]{{0}} all-reduce(%made){TAIL}"""
    assert only(body, more=fused) == [("all_gather", "sum of pieces", 32.0)]
