"""Text: every spelling of an instruction, tables of frames, configs; text that is no module."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import ShardwiseError
from shardwise.profiler.hlo import module_work, read_module

MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=2

FileNames
1 "model.py"
2 "train \\"me\\".py"

FunctionNames
1 "loss"
2 "<module>"

FileLocations
1 {file_name_id=2 function_name_id=2 line=30 end_line=30 column=0 end_column=9}
2 {file_name_id=1 function_name_id=1 line=16 end_line=17 column=15 end_column=15}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%fused (p.0: bf16[8,128], /*index=1*/p.1: s32[]) -> bf16[8,128] {
  %p.0 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p.1 = s32[]{:T(128)S(6)} parameter(1)
  ROOT %tanh.1 = bf16[8,128]{1,0:T(8,128)(2,1)} tanh(%p.0)
}, execution_thread="sparsecore"
ENTRY %main (x: bf16[8,128]) -> (bf16[8,128], f32[2,2]) {
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0), sharding={devices=[2,1]<=[2]}
  %three = s32[]{:T(128)} constant(3)
  %table = f32[2,2]{1,0} constant({
    { 1, 2 },
    { 3, 4 }
  })
  %f = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%x, /*index=1*/%three), kind=kLoop, calls=%fused, \
metadata={op_name="jit(f)/jvp(mlp)/a, b=c/tanh" stack_frame_id=2}, backend_config={\
"flag_configs":[],"window_config":{"kernel_window_bounds":[],"estimated_cycles":"1234"}}
  %g = bf16[8,128]{1,0} custom-call(%x, %f), custom_call_target="call{me, \\"now\\"}", \
metadata={op_name="old" source_file="/a/b.py" source_line=7}, backend_config="{\\"a\\":[1,2]}"
  ROOT %t = (bf16[8,128]{1,0}, f32[2,2]{1,0}) tuple(%g, /*index=1*/%table)
}
"""


@pytest.fixture(scope="module")
def module():
    return read_module(MODULE)


def test_computations_and_the_header(module):
    assert list(module.computations) == ["fused", "main"]
    assert (module.name, module.entry, module.devices) == ("jit_f", "main", 2)
    assert module.scheduled
    assert [i.name for i in module.computations["main"].instructions] == [
        "x", "three", "table", "f", "g", "t",
    ]  # fmt: skip


def test_attributes_are_cut_outside_brackets_and_quotes(module):
    fusion = module.computations["main"].names["f"]
    assert fusion.operands == ("x", "three")
    assert fusion.attribute("kind") == "kLoop"
    assert fusion.called == ("fused",)
    assert fusion.op_name == "jit(f)/jvp(mlp)/a, b=c/tanh"
    assert fusion.cycles == 1234
    assert fusion.config["window_config"]["kernel_window_bounds"] == []
    assert fusion.attribute("estimated_cycles") == ""


def test_quoted_configs_and_targets(module):
    call = module.computations["main"].names["g"]
    assert call.config == {"a": [1, 2]}
    assert call.attribute("custom_call_target") == '"call{me, \\"now\\"}"'
    assert call.operands == ("x", "f")
    assert call.cycles is None


def test_constants_over_several_lines(module):
    entry = module.computations["main"]
    assert entry.names["three"].literal == "3"
    assert "3, 4" in entry.names["table"].literal
    assert entry.root.operands == ("g", "table")
    assert [p.name for p in module.computations["fused"].parameters] == ["p.0", "p.1"]


def test_sources_go_from_the_innermost_call_outwards(module):
    entry = module.computations["main"]
    inner, outer = module.sources(entry.names["f"])
    assert (str(inner), inner.function) == ("model.py:16", "loss")
    assert (outer.line, outer.function) == (30, "<module>")
    assert [str(s) for s in module.sources(entry.names["g"])] == ["/a/b.py:7"]
    assert module.sources(entry.names["x"]) == ()


@given(st.integers(0, len(MODULE) - 3))
def test_text_that_ends_anywhere_early_is_an_error(end):
    with pytest.raises(ShardwiseError):
        read_module(MODULE[:end])


def test_the_error_says_where_the_text_ends():
    with pytest.raises(ShardwiseError, match="ends inside computation 'main'; it is not complete"):
        read_module(MODULE[:-2])


def test_text_that_is_no_hlo_is_an_error():
    with pytest.raises(ShardwiseError, match="no ENTRY computation"):
        read_module("module @jit_f { func.func public @main() }")
    with pytest.raises(ShardwiseError, match="cannot be read"):
        read_module(MODULE.replace("tanh(%p.0)", "%p.0"))


def test_a_computation_that_is_missing_is_an_error(module):
    with pytest.raises(ShardwiseError, match="calls 'other', which it lacks"):
        module.computation("other")
    with pytest.raises(ShardwiseError, match="has no instruction 'nothing'"):
        module.computations["main"].shape_of("nothing")


BEGUN = """HloModule m, is_scheduled=true, num_partitions=1

%cut (p0: bf16[16,8,128], p1: s32[]) -> bf16[1,8,128] {
  %p0 = bf16[16,8,128]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %one = bf16[1,8,128]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), \
dynamic_slice_sizes={1,8,128}
}

ENTRY %main (x: bf16[16,8,128], at: s32[]) -> bf16[1,8,128] {
  %x = bf16[16,8,128]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %begun = ((bf16[16,8,128]{2,1,0}, s32[]), bf16[1,8,128]{2,1,0}, u32[]) \
fusion-start(%x, %at), kind=kLoop, calls=%cut
  ROOT %ended = bf16[1,8,128]{2,1,0} fusion-done(%begun)
}
"""


def test_a_fusion_on_a_stream_of_its_own_is_that_fusion():
    (found,) = module_work(read_module(BEGUN)).ops
    assert (found.name, found.op.op_class) == ("begun", "copy")
    assert float(found.op.hbm_bytes) == 2 * 2 * 8 * 128 + 4
