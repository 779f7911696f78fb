"""Sums that a loop stacks up piece by piece, and pieces that are no whole number of tiles."""

import pytest

from shardwise.hardware import parse_slice
from shardwise.profiler.explain import explain_program, rules_network
from shardwise.sharding import Mesh

MESH = Mesh.parse("fsdp=4")


def module(rows, width, read):
    """An all-reduce of [4 rows, width] of which `read` of its rows go into a stack of 8 pieces."""
    whole = f"bf16[{4 * rows},{width}]{{1,0:T(8,128)(2,1)}}"
    piece, stack = f"bf16[{read},{width}]{{1,0}}", f"bf16[8,{read},{width}]{{2,1,0}}"
    at = f"bf16[1,{read},{width}]{{2,1,0}}"
    return f"""HloModule m, is_scheduled=true, num_partitions=4

%add (a: bf16[], b: bf16[]) -> bf16[] {{
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}}

%stacked (s: bf16[8,{read},{width}], g: bf16[{4 * rows},{width}], i: s32[]) -> {stack} {{
  %s = {stack} parameter(0)
  %g = {whole} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %cut = {piece} dynamic-slice(%g, %i, %zero), dynamic_slice_sizes={{{read},{width}}}
  %one = {at} bitcast(%cut)
  ROOT %put = {stack} dynamic-update-slice(%s, %one, %i, %zero, %zero)
}}

ENTRY %main (p: bf16[{4 * rows},{width}], q: bf16[8,{read},{width}], i: s32[]) -> {stack} {{
  %p = {whole} parameter(0)
  %q = {stack} parameter(1)
  %i = s32[] parameter(2)
  %reduced = {whole} all-reduce(%p), channel_id=1, replica_groups={{{{0,1,2,3}}}}, to_apply=%add
  ROOT %out = {stack} fusion(%q, %reduced, %i), kind=kLoop, calls=%stacked
}}
"""


def told(*shape):
    found = explain_program(module(*shape), parse_slice("v5p:2x2x1"), MESH).findings
    return [f.remedy for f in found if f.rule == "whole sums"]


@pytest.mark.parametrize("width", [4096, 16384])
@pytest.mark.parametrize("rows", [1024, 4096])
def test_a_piece_put_into_a_stack_is_still_a_piece(rows, width):
    (remedy,) = told(rows, width, rows)
    assert "psum_scatter" in remedy


def test_a_piece_of_less_than_a_tile_says_so():
    (remedy,) = told(4, 2**20, 4)
    assert "4 of 16 rows and a tile 8" in remedy


def test_a_sum_that_is_read_whole_is_no_fault():
    assert told(1024, 4096, 4096) == []


def test_over_all_of_a_slice_nothing_is_scattered(monkeypatch):
    """As if libtpu summed whole from four devices on, not from eight."""
    monkeypatch.setattr(rules_network, "least_devices", lambda: {"v5p": 4})
    (remedy,) = told(1024, 4096, 1024)
    assert "one mesh axis of all 4 devices" in remedy
    assert "leave another axis" in remedy
