"""Buffer assignments as XLA dumps them: arguments by name, temporaries by source line."""

from shardwise.profiler.ahead.buffers import assigned_bytes, read_buffers

HLO = """HloModule jit_f, is_scheduled=true

FileNames
1 "/home/me/model.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=15 end_column=28}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%body (p: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %dot.3 = bf16[4096,128]{1,0:T(8,128)(2,1)} dot(%a, %b), metadata=MLP
}

ENTRY %main (param: f32[64,128], param.1: f32[8,128]) -> f32[64,128] {
  %param = f32[64,128]{1,0:T(8,128)} parameter(0), metadata={op_name="state[\\'params\\'][\\'w\\']"}
  %param.1 = f32[8,128]{1,0:T(8,128)} parameter(1), metadata={op_name="x"}
  ROOT %add = f32[64,128]{1,0:T(8,128)} add(%param, %param), metadata=ADD
}
""".replace("MLP", '{op_name="jit(f)/mlp/dot_general" stack_frame_id=1}').replace(
    "ADD", '{op_name="jit(f)/add" stack_frame_id=1}'
)
ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <2 add.21 @0> (size=512,offset=0): bf16[]{:T(256)}
allocation 1: size 32768, parameter 0, shape |f32[64,128]| at ShapeIndex {}, maybe-live-out:
 value: <1 param @0> (size=32768,offset=0): f32[64,128]{1,0:T(8,128)}
allocation 2: size 4096, parameter 1, shape |f32[8,128]| at ShapeIndex {}:
 value: <3 param.1 @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
allocation 3: size 32768, output shape is |f32[64,128]|, maybe-live-out:
 value: <4 add @0> (size=32768,offset=0): f32[64,128]{1,0:T(8,128)}
allocation 4: size 1049088, preallocated-temp:
 value: <5 while.1{1} (phi) @0> (size=1048576,offset=0): bf16[4096,128]{1,0:T(8,128)(2,1)}
 value: <6 dot.3 @0> (size=1048576,offset=0): bf16[4096,128]{1,0:T(8,128)(2,1)}
 value: <7 small @0> (size=4096,offset=8192): f32[8,128]{1,0:T(8,128)}
 value: <8 tuple.2{} @0> (size=512,offset=1048576): (s32[]{:T(128)}, bf16[4096,128]{1,0:T(8,128)})
allocation 5: size 65536, color 1, preallocated-temp:
 value: <9 vmem.1 @1> (size=65536,offset=0): bf16[32,1024]{1,0:T(8,128)(2,1)S(1)}
allocation 6: size 16384, color 5, preallocated-temp:
 value: <10 offload.1 @5> (size=16384,offset=0): f32[32,128]{1,0:T(8,128)S(5)}

Total bytes used: 1119744 (1.07MiB)
"""


def test_places_count_once_and_are_named_by_what_made_them():
    found = read_buffers(ASSIGNMENT, HLO)
    dot = found[0]
    assert (dot.bytes, dot.kind, dot.name) == (1048576, "temporary", "dot.3")
    assert (dot.shape, dot.op, dot.source) == (
        "bf16[4096,128]",
        "jit(f)/mlp/dot_general",
        "/home/me/model.py:12",
    )
    # `small` lies inside dot.3's place and `vmem.1` in another memory.
    assert {b.name for b in found} == {"dot.3", "param", "param.1", "add", "tuple.2", "offload.1"}


def test_arguments_outputs_and_host_memory_are_told_apart():
    kinds = {b.name: (b.kind, b.op) for b in read_buffers(ASSIGNMENT, HLO)}
    assert kinds["param"] == ("argument", "state['params']['w']")
    assert kinds["param.1"] == ("argument", "x")
    assert kinds["add"] == ("output", "jit(f)/add")
    assert kinds["offload.1"][0] == "host"


def test_what_is_held_against_the_hbm_is_every_allocation_there():
    assert assigned_bytes(ASSIGNMENT) == 32768 + 4096 + 32768 + 1049088


def test_text_without_an_assignment_holds_nothing():
    assert read_buffers("", HLO) == ()
    assert assigned_bytes("") == 0
