"""HLO text that is damaged: one message that names the line and the instruction, or an answer."""

import gzip
import json
import random
import re
import time
from pathlib import Path

import pytest
from tests.apps.commands import run
from tests.profiler.overlap import read_overlaps

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.profiler.explain import explain_program
from shardwise.profiler.hlo import (
    module_work,
    read_collectives,
    read_groups,
    read_matmuls,
    read_module,
    read_pairs,
    read_shape,
    trip_counts,
)
from shardwise.profiler.hlo.flops import matmul_flops
from shardwise.profiler.hlo.parts import parts
from shardwise.profiler.timeline import schedule

ROOT = Path(__file__).parents[2]
SEEDS = [
    ROOT / "kept" / "matmul_scatter.hlo.gz",
    ROOT / "kept" / "ffw.hlo.gz",
    ROOT / "profiler" / "explain" / "data" / "gather_in_decode.a.fault.hlo.gz",
    ROOT / "profiler" / "explain" / "data" / "host_transfer.a.fault.hlo.gz",
    ROOT / "profiler" / "explain" / "data" / "needless_relayout.a.fault.hlo.gz",
]
MODULE = """HloModule jit_step, is_scheduled=true, num_partitions=4

%fused (p.0: f32[8,16], p.1: f32[16,8]) -> f32[8,8] {
  %p.0 = f32[8,16]{1,0:T(8,128)} parameter(0)
  %p.1 = f32[16,8]{1,0:T(8,128)} parameter(1)
  %view = f32[8,16]{1,0:T(8,128)} bitcast(%p.0)
  ROOT %dot = f32[8,8]{1,0:T(8,128)} dot(%view, %p.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

%body (b: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %b = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f32[8,8]{1,0} get-tuple-element(%b), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %sum = f32[8,8]{1,0} all-reduce(%x), replica_groups=[2,2]<=[4], to_apply=%plus
  ROOT %t = (s32[], f32[8,8]{1,0}) tuple(%next, %sum)
}

%condition (c: (s32[], f32[8,8])) -> pred[] {
  %c = (s32[], f32[8,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(6)
  ROOT %lt = pred[] compare(%j, %n), direction=LT
}

ENTRY %main (a: f32[8,16], w: f32[16,8]) -> f32[8,8] {
  %a = f32[8,16]{1,0:T(8,128)} parameter(0), sharding={devices=[2,2]<=[4]}
  %w = f32[16,8]{1,0:T(8,128)} parameter(1)
  %f = f32[8,8]{1,0:T(8,128)} fusion(%a, %w), kind=kOutput, calls=%fused, \
metadata={op_name="jit(step)/mlp/dot" source_file="train.py" source_line=12}, \
backend_config={"window_config":{"estimated_cycles":"1234"}}
  %turned = f32[8,8]{0,1} transpose(%f), dimensions={1,0}
  %start = (f32[8,8]{0,1}, f32[8,8]{0,1}, u32[]) collective-permute-start(%turned), \
source_target_pairs={{0,1},{1,0}}
  %done = f32[8,8]{0,1} collective-permute-done(%start)
  %zero = s32[] constant(0)
  %cut = f32[1,8]{1,0} dynamic-slice(%done, %zero, %zero), dynamic_slice_sizes={1,8}
  %put = f32[8,8]{1,0} dynamic-update-slice(%done, %cut, %zero, %zero)
  %init = (s32[], f32[8,8]{1,0}) tuple(%zero, %put)
  %loop = (s32[], f32[8,8]{1,0}) while(%init), condition=%condition, body=%body
  ROOT %out = f32[8,8]{1,0} get-tuple-element(%loop), index=1
}
"""
NAMES = re.compile(r"[\w.\-]+")


def everything(text):
    """Every public reader of HLO text; its timeline, where there is one, is finite."""
    module = read_module(text)
    for collective in read_collectives(module):
        parts(module, collective)
    read_matmuls(text)
    read_overlaps(text)
    work = module_work(module)
    for computation in module.computations.values():
        for instruction in computation.instructions:
            module.sources(instruction)
    try:
        piece = parse_slice({1: "v5e:1x1", 2: "v5e:1x2", 4: "v5e:2x2"}.get(work.devices, "v5e:2x4"))
        found = schedule(work, piece)
        explain_program(text, piece)
    except BadRequest:  # another number of devices, or a number that the catalogue lacks
        return
    assert 0 <= found.lower <= found.expected <= found.upper < float("inf")


def answer(text):
    """The message of what is refused; empty for what is read."""
    try:
        everything(text)
    except BadRequest as error:
        return str(error)
    return ""


def refused(text, *words):
    message = answer(text)
    assert message
    for word in words:
        assert word in message


def test_the_module_itself_is_read():
    everything(MODULE)


@pytest.mark.parametrize("line", range(len(MODULE.splitlines())))
def test_one_deleted_line_is_a_message_or_an_answer(line):
    lines = MODULE.splitlines()
    del lines[line]
    message = answer("\n".join(lines))
    assert not message or "the HLO text" in message


DAMAGE = [
    # operands and names
    ("fusion(%a, %w)", "fusion(%a, %gone)", "line 30: fusion 'f': it reads 'gone', which is not"),
    ("fusion(%a, %w)", "fusion(%a, %loop)", "it reads 'loop', which stands after it"),
    ("fusion(%a, %w)", "fusion(%a)", "it has 1 operands and 'fused' 2 parameters"),
    ("add(%i, %one)", "add(%i)", "line 15: add 'next': it has 1 operands"),
    ("%turned = ", "%f = ", "there is an instruction 'f' already"),
    ("%view = f32", "ROOT %view = f32", "'fused' has a ROOT already"),
    ("parameter(1)", "parameter(7)", "has no parameter 1, or has it twice"),
    ("parameter(1)", "parameter(\x11)", r"the number of parameter 'p.1' is '\x11'"),
    ("parameter(1)", "parameter(x)", "the number of parameter 'p.1' is 'x'"),
    # computations
    ("calls=%fused", "calls=%other", "it runs 'other', a computation that is not there"),
    (", kind=kOutput, calls=%fused", "", "it names no computation that it runs"),
    (", body=%body", "", "it lacks its condition or its body"),
    ("to_apply=%plus", "to_apply=%body", "it runs 'body', which runs it again"),
    ("%condition (c", "%body (c", "line 20: there is a computation 'body' already"),
    ("ENTRY %main", "%main", "it has no ENTRY computation"),
    ("HloModule", "Module", "lacks its first line"),
    # shapes
    ("f32[8,16]{1,0:T(8,128)} parameter(0)", "f32[x]{0} parameter(0)", "line 4: HLO shape"),
    ("bitcast(%p.0)", "bitcast(", "line 6: HLO text ends inside a bracket"),
    ("f32[8,8]{1,0} dynamic-update", "f32[1152921504606846976]{0} dynamic-update", "at most"),
    ("f32[8,8]{1,0} dynamic-update", f"f32[{'9' * 5000}]{{0}} dynamic-update", "whole number"),
    ("f32[8,8]{0,1} transpose", "f32[8,8]{0,2} transpose", "must name each of its 2 dims once"),
    ("f32[8,8]{0,1} transpose", "f32[8,8]{0,1:T(0,128)} transpose", "a tile of layout"),
    ("f32[8,8]{0,1} transpose", "(" * 2000 + "f32[8]" + ")" * 2000 + " transpose", "deeper"),
    ("f32[1,8]{1,0} dynamic-slice", "(f32[1,8]{1,0}) dynamic-slice", "its shape is not an array"),
    ("(%done, %cut,", "(%done, %init,", "reads 'init', which stands after it"),
    # attributes
    (
        "lhs_contracting_dims={1}",
        "lhs_contracting_dims={5}",
        "of the left operand are not of its 2",
    ),
    ("lhs_contracting_dims={1}", "lhs_contracting_dims={-1}", "must be at least 0"),
    ("index=1\n}", "index=2\n}", "get-tuple-element 'out': its index is 2"),
    ("index=1\n}", "\n}", "its index is ''"),
    ("direction=LT", "direction=UP", "its direction is 'UP', which is none"),
    ("dimensions={1,0}", "dimensions={1,1}", "are not those of its operand"),
    # groups
    ("[2,2]<=[4]", "[1000000000,1]<=[1000000000]", "more than the program's 4 devices"),
    ("[2,2]<=[4]", "[2,3]<=[4]", "are 6 places for 4 devices"),
    ("[2,2]<=[4]", "[2,2]<=[4]T(1)", "names not each dim once"),
    ("[2,2]<=[4]", "{{0,1},{1,2}}", "must name each device once"),
    ("[2,2]<=[4]", "{{0,1},{2,9}}", "must name each device once"),
    ("[2,2]<=[4]", "mesh['x'=4] {'y'}", "over axis 'y', which their mesh lacks"),
    ("[2,2]<=[4]", "mesh['x'=4] {'x':(3)1}", "cut axis 'x' of 4 into 3 x 1"),
    ("{{0,1},{1,0}}", "{{0,1},{1}}", "must each be a source and a target"),
    ("{{0,1},{1,0}}", "{{0,1},{1,4}}", "name more than the program's 4"),
    ("num_partitions=4", "num_partitions=9999999999", "num_partitions is 9999999999"),
    ("devices=[2,2]<=[4]", "devices=[2,3]<=[4]", "has 6 tiles for 4 devices"),
    # numbers and configs
    ('"1234"', '"99999999999999999999"', "'estimated_cycles' of its backend_config"),
    ('"1234"}}', '"1234"}', "its backend_config is not JSON"),
    ("source_line=12", "source_line=1e400", "a number of a line or of a frame"),
    (
        "while(%init), ",
        'while(%init), backend_config={"known_trip_count":{"n":"' + "9" * 30 + '"}}, ',
        "'known_trip_count' of its backend_config",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), DAMAGE, ids=[m[2][:40] for m in DAMAGE])
def test_what_does_not_belong_together_is_named(old, new, message):
    assert old in MODULE
    at = MODULE.rindex(old) if old in ("direction=LT", "index=1\n}") else MODULE.index(old)
    refused(MODULE[:at] + new + MODULE[at + len(old) :], "the HLO text", message)


def test_a_capture_with_a_damaged_program_is_one_message(capsys, tmp_path):
    event = {"ph": "X", "name": "f", "ts": 0, "dur": 5, "pid": 1, "args": {"hlo_op": "f"}}
    (tmp_path / "run.trace.json").write_text(json.dumps([event]))
    hlo = tmp_path / "step.txt"
    args = ("profile", "--capture", tmp_path / "run.trace.json", "--hlo", hlo)
    hlo.write_text(MODULE)
    assert run(capsys, *args)[0] == 0
    hlo.write_text(MODULE.replace("  %x = ", "  %y = "))
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert f"--hlo '{hlo}', line 16: all-reduce 'sum': it reads 'x', which is not there" in err
    assert "give the whole text of the compiled program" in err
    hlo.write_bytes(b"\xff\xfe" + MODULE.encode("utf-16-le"))
    assert "is not text in UTF-8" in run(capsys, *args)[2]
    hlo.write_bytes(gzip.compress(b"x" * 2**25))
    assert "unpacks to more than" in run(capsys, *args)[2]


def test_programs_that_grow_are_refused_at_once():
    def nested(levels, calls, opcode="fusion"):
        text = "HloModule m\n\n%c0 (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8]{0} parameter(0)\n}\n"
        for i in range(1, levels):
            text += f"%c{i} (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n"
            for j in range(calls):
                text += f"  %r{j} = f32[8]{{0}} fusion(%p), kind=kLoop, calls=%c{i - 1}\n"
            text += "}\n"
        last = f"  ROOT %r = f32[8]{{0}} fusion(%p), kind=kLoop, calls=%c{levels - 1}\n"
        main = "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        return f"{text}{main}{last}}}\n"

    begun = time.process_time()
    everything(nested(20, 1))
    refused(nested(3000, 1), "runs more than", "50 computations in each other")
    refused(nested(40, 2), "runs more than 1,000,000 instructions")
    counted = 'known_trip_count":{"n":"1000000000000000000"}'
    text = MODULE.replace("while(%init), ", f'while(%init), backend_config={{"{counted}}}, ')
    (loop,) = trip_counts(read_module(text)).values()
    assert loop == 10**18
    everything(text)
    refused(
        text.replace("loop =", "l0 =")
        .replace(
            "  ROOT %out",
            f"  %loop = (s32[], f32[8,8]{{1,0}}) while(%l0), condition=%condition, "
            f'body=%outer, backend_config={{"{counted}}}\n  ROOT %out',
        )
        .replace(
            "%condition (c",
            "%outer (b: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {\n"
            "  %b = (s32[], f32[8,8]{1,0}) parameter(0)\n  ROOT %l = (s32[], f32[8,8]{1,0}) "
            f'while(%b), condition=%condition, body=%body, backend_config={{"{counted}}}\n}}\n\n'
            "%condition (c",
        ),
        "loop 'l' runs 1e+36 times per step",
    )
    assert time.process_time() - begun < 5


def test_long_text_is_read_in_a_time_that_grows_with_its_length():
    """Each of these took minutes, by the square of its length or worse."""
    begun = time.process_time()
    refused(MODULE.replace("bitcast(%p.0)", "bitcast(%p.0,") + "\n" * 200_000)
    with pytest.raises(BadRequest):
        read_shape("f32[8]" + "/*" * 200_000)
    read_module(MODULE.replace("kind=kOutput", "kind=kOutput" + ", x={}, y" * 100_000))
    with pytest.raises(BadRequest):
        read_module("HloModule m\n%x (" + ")->{" * 200_000 + "\n" + MODULE)
    refused(MODULE.replace("jit(step)/mlp", "jvp(" * 50_000), "metadata has")
    chain = "".join(
        f"  %v{i} = s32[] add(%{f'v{i - 1}' if i else 'zero'}, %zero)\n" for i in range(3000)
    )
    text = MODULE.replace("  %init = ", chain + "  %init = ").replace(
        "tuple(%zero,", "tuple(%v2999,"
    )
    assert list(trip_counts(read_module(text)).values()) == [None]  # unknown, and said so
    assert time.process_time() - begun < 10


def test_large_windows_and_grids_are_counted_without_going_through_them():
    text = """HloModule m

ENTRY %main (a: f32[8]) -> f32[1,1000000,1] {
  %a = f32[8]{0} parameter(0)
  %in = f32[1,400000,1]{2,1,0} broadcast(%a), dimensions={}
  %k = f32[500000,1,1]{2,1,0} broadcast(%a), dimensions={}
  %m = s8[1,1099511627776,2]{2,1,0} broadcast(%a), dimensions={}
  %q = bf16[8,1024,128]{2,1,0} broadcast(%a), dimensions={}
  %s = bf16[8,1024,128]{2,1,0} custom-call(%m, %q, %q, %q), \
custom_call_target="tpu_custom_call", metadata={op_name="splash_mha_fwd"}
  ROOT %c = f32[1,1000000,1]{2,1,0} convolution(%in, %k), \
window={size=500000 lhs_dilate=3 stride=2}, dim_labels=b0f_0io->b0f
}
"""
    begun = time.process_time()
    (product,) = read_matmuls(text)
    assert matmul_flops(product) > 0
    module_work(read_module(text))
    refused(text.replace("lhs_dilate=3", "lhs_dilate=0"), "'lhs_dilate' of a window is 0")
    refused(text.replace("0io", "1io"), "do not name each dim of its shapes once")
    assert time.process_time() - begun < 5


def test_a_loop_of_no_rounds_has_a_timeline():
    text = MODULE.replace(
        "while(%init), ", 'while(%init), backend_config={"known_trip_count":{"n":"0"}}, '
    )
    found = schedule(module_work(read_module(text)), parse_slice("v5e:2x2"))
    (summed,) = (row for row in found.rows if row.op.name == "sum")
    assert (summed.per_step, summed.exposed) == (0, 0)


def test_cycles_that_the_compiler_does_not_estimate_are_none():
    module = read_module(MODULE.replace('"1234"', f'"{2**63 - 1}"'))
    assert module.computations["main"].names["f"].cycles is None


@pytest.mark.parametrize("text", ["{{0,1},{2", "[2,4]<=[8]T(0,0)", "[0,8]<=[8]", "mesh[] {'x'}"])
def test_groups_and_pairs_of_other_text_are_messages(text):
    with pytest.raises(BadRequest):
        read_groups(text, 8)
    with pytest.raises(BadRequest):
        read_pairs("{{0,1},{" + "1" * 5000 + ",2}}")


def damaged(rng, text):
    """A text with some lines lost, doubled, swapped or cut, numbers and names changed."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        i, j, how = rng.randrange(len(lines)), rng.randrange(len(lines)), rng.randrange(7)
        line = lines[i]
        found = list((re.compile(r"\d+") if how == 4 else NAMES).finditer(line))
        if how == 0:
            lines[i] = ""
        elif how == 1:
            lines.insert(i, line)
        elif how == 2:
            lines[i], lines[j] = lines[j], line
        elif how == 3:
            lines[i] = line[: rng.randrange(len(line) + 1)]
        elif how == 6:
            at = rng.randrange(len(line) + 1)
            lines[i] = line[:at] + rng.choice('(){}[]",=:%<*/\\\t') + line[at + rng.randrange(3) :]
        elif found:
            new = rng.choice(("0", "-1", "7", "1" * 5000, "9" * 19, "1e400", "nan", "inf"))
            words = NAMES.findall(lines[j])
            word = rng.choice(found)
            new = new if how == 4 or not words else rng.choice(words)
            lines[i] = line[: word.start()] + new + line[word.end() :]
    return "\n".join(lines)


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.name.partition(".hlo")[0])
@pytest.mark.parametrize("times", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_damaged_programs_are_answered_or_refused(path, times):
    text = gzip.decompress(path.read_bytes()).decode()
    rng = random.Random(path.name)
    answered = 0
    for _ in range(times):
        answered += not answer(damaged(rng, text))
    assert 0 < answered < times
