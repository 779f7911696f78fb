"""One op from JAX to the schedule, read from what a compile kept (tests/kept/decode_mlp)."""

import re

import pytest

from kept import FOLDER, hlo
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import module_work
from shardwise.profiler.stages import read_stages, stages_of
from shardwise.profiler.stages.passes import OpKey, Place, kinds
from shardwise.profiler.stages.texts import jaxpr_of, stablehlo_of
from shardwise.profiler.timeline import schedule
from shardwise.sharding import Mesh

KEPT = read_stages(FOLDER / "decode_mlp.json.gz")
MODULE = read_module(hlo("decode_mlp"))
WORK = module_work(MODULE, Mesh((("fsdp", 4), ("tensor", 2))))
LINE = schedule(WORK, parse_slice("v5e:2x4"))
# The line of `x @ w_in` as it was when the program was kept: the first of its own function, the
# innermost and so the last of the named ones.
PLACES = re.findall(r"function_name_id=(\d+) line=(\d+) ", hlo("decode_mlp"))
SOURCE = min(
    int(line) for function, line in PLACES if int(function) == max(int(f) for f, _ in PLACES)
)


def followed(what, line=LINE):
    return stages_of(KEPT, MODULE, WORK.ops, line, what)


def did(stages, kind):
    """What there is after the passes that did something."""
    return [text for c in stages.changes if kind in c.kinds for text in c.after]


def test_the_first_product_is_cut_fused_and_given_its_weights():
    """x[64, 8192] over fsdp=4 and the hidden dim over tensor=2: 16 x 14,336 of a device; W_in is
    gathered over fsdp for it, the product becomes a convolution, and the relu is fused with it."""
    found = followed("dearest")
    assert found.op == "jit(decode_mlp)/mlp/dot_general"
    assert found.source.endswith(f"kept_programs.py:{SOURCE}")
    (given,) = did(found, "given")
    assert given.startswith("dot bf16[64,28672]")
    cut = did(found, "cut")
    assert any("dot bf16[16,14336]" in text for text in cut)
    assert any("all-gather bf16[8192,14336]" in text for text in did(found, "exchange inserted"))
    assert any("T(8,128)(2,1)" in text for text in did(found, "layout"))
    assert any(text.startswith("convolution") for text in did(found, "rewritten"))
    assert any("maximum" in text for text in did(found, "fused"))
    assert "asynchronous" in "".join(did(found, "made asynchronous"))
    order = [c.number for c in found.changes]
    assert order == sorted(set(order))


def test_it_stands_in_every_text():
    found = followed("dearest")
    (equation,) = found.jaxpr
    assert equation.startswith("d:bf16[64,28672] = dot_general[")
    (op,) = found.stablehlo
    assert "stablehlo.dot_general %arg0, %arg1" in op
    assert any("calls=%" in text for text in found.hlo)
    assert all("metadata" not in text for text in found.hlo)
    own = [turn for turn in found.schedule if turn.own]
    assert own
    assert found.seconds == pytest.approx(found.share * LINE.expected)
    starts = [turn.start for turn in found.schedule]
    assert starts == sorted(starts)


def test_an_op_is_chosen_by_rank_line_scope_instruction_or_name():
    first, second = followed("1"), followed("2")
    assert first == followed("dearest")
    assert first.seconds >= second.seconds
    assert followed(f"kept_programs.py:{SOURCE}").source == first.source
    assert followed("mlp") == followed("decode_mlp") == first
    assert followed("dot_general") == first
    name = max(LINE.rows, key=lambda row: row.per_step).op.name
    assert f"%{name} = " in "".join(followed(name).hlo)
    with pytest.raises(BadRequest, match=r"--stages 'softmax' names no op of the program; give a"):
        followed("softmax")
    with pytest.raises(BadRequest, match=r"the dearest are kept_programs.py:\d+"):
        followed("0")


def test_without_a_timeline_there_are_no_seconds_and_no_schedule():
    found = followed("mlp", None)
    assert (found.seconds, found.share, found.schedule) == (None, None, ())
    assert found.changes


def place(opcode="dot", array="bf16[8,8]", layout="1,0", *, fused=False, beside=(), ahead=False):
    return Place(opcode, array, layout, fused, beside, ahead)


@pytest.mark.parametrize(
    ("gone", "new", "words"),
    [
        ([place()], [place(array="bf16[4,8]")], ("cut",)),
        ([place()], [place(array="f32[8,8]")], ("converted",)),
        ([place()], [place(layout="1,0:T(8,128)")], ("layout",)),
        ([place()], [place(layout="1,0:S(1)")], ("moved to VMEM",)),
        ([place()], [place(fused=True, beside=("add",))], ("fused",)),
        ([place(fused=True)], [place()], ("taken out of its fusion",)),
        ([place()], [place("convolution")], ("rewritten",)),
        ([place("all-gather")], [place("all-gather", ahead=True)], ("made asynchronous",)),
        ([], [place("all-reduce")], ("exchange inserted",)),
        ([], [place("copy")], ("copied",)),
        ([place()], [], ("gone",)),
    ],
    ids=lambda x: str(x)[:30],
)
def test_what_a_pass_did_in_a_word(gone, new, words):
    assert kinds(dict.fromkeys(gone, 1), dict.fromkeys(new, 1), {}) == words


def test_what_is_there_once_more_is_repeated():
    assert kinds({}, {place(): 1}, {place(): 1}) == ("repeated",)


def test_scopes_tell_equations_of_one_line_apart():
    text = """{ lambda ; a:f32[8]. let
    b:f32[8] = mul[                                        # mine.py:3:4 (f)
                                                           # [jvp(mlp)]
      x=1
    ] a a
    c:f32[8] = mul a a                                     # mine.py:3:4 (f)
                                                           # [transpose(jvp(mlp))]
  in (c,) }"""
    forward = OpKey("jit(f)/jvp(mlp)/mul", "mine.py", 3)
    assert jaxpr_of(text, forward) == ["b:f32[8] = mul[ x=1 ] a a"]
    back = OpKey("jit(f)/transpose(jvp(mlp))/mul", "mine.py", 3)
    assert "c:f32[8] = mul a a" in jaxpr_of(text, back)
    assert jaxpr_of(text, forward._replace(line=4)) == []


def test_ops_of_called_functions_are_found_by_their_last_word():
    text = """module @jit_f {
  %0 = stablehlo.maximum %a, %b : tensor<8xf32> loc(#loc3)
  %1 = stablehlo.add %0, %b : tensor<8xf32> loc(#loc4)
}
#loc1 = loc("mine.py":7:3 to :9)
#loc2 = loc("f"(#loc1))
#loc3 = loc("max"(#loc2))
#loc4 = loc("jit(f)/add"(#loc2))
"""
    assert stablehlo_of(text, OpKey("jit(f)/jit(relu)/max", "mine.py", 7))[0].startswith("%0")
    assert stablehlo_of(text, OpKey("jit(f)/add", "mine.py", 7))[0].startswith("%1")
    assert stablehlo_of(text, OpKey("jit(f)/add", "mine.py", 8)) == []
