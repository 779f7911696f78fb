"""Bytes: what lives in VMEM is free, slices and updates in place move only their part."""

import pytest

from shardwise.profiler.hlo import read_module
from shardwise.profiler.hlo.traffic import traffic

TILED = "{1,0:T(8,128)}"
VMEM = "{1,0:T(8,128)S(1)}"
HOST = "{1,0:T(8,128)S(5)}"


def moved(*lines, inside=""):
    body = "\n".join(f"  {line}" for line in lines)
    text = f"HloModule m\n\n{inside}\nENTRY %main () -> f32[] {{\n{body}\n}}\n"
    module = read_module(text)
    entry = module.computations["main"]
    return traffic(module, entry, entry.root)


def fused(*lines):
    body = "\n".join(f"  {line}" for line in lines)
    return f"%fused () -> f32[] {{\n{body}\n}}\n"


def test_operands_and_result_of_a_plain_op():
    found = moved(
        f"%a = f32[64,128]{TILED} parameter(0)",
        f"%b = f32[64,128]{VMEM} parameter(1)",
        f"ROOT %c = f32[64,128]{TILED} add(%a, %b)",
    )
    assert (found.main, found.chip, found.padding) == (2 * 64 * 128 * 4, 64 * 128 * 4, 0)


def test_padding_moves_too():
    found = moved(
        f"%a = f32[60,100]{TILED} parameter(0)", f"ROOT %c = f32[60,100]{VMEM} negate(%a)"
    )
    assert (found.main, found.chip) == (64 * 128 * 4, 64 * 128 * 4)
    assert found.padding == (64 * 128 - 60 * 100) * 4


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (f"f32[8,128]{TILED} slice(%a), slice={{[0:8], [0:128]}}", 2 * 8 * 128 * 4),
        (f"f32[8,128]{TILED} dynamic-slice(%a, %i, %i)", 2 * 8 * 128 * 4 + 4),
        (f"f32[800,128]{TILED} dynamic-update-slice(%a, %u, %i, %i)", 2 * 16 * 128 * 4 + 4 + 4),
        (f"f32[24,128]{TILED} gather(%a, %rows)", 2 * 24 * 128 * 4 + 24 * 4),
        (f"f32[800,128]{TILED} scatter(%a, %rows, %u)", 3 * 16 * 128 * 4 + 24 * 4),
    ],
)
def test_parts_of_arrays(line, size):
    found = moved(
        f"%a = f32[800,128]{TILED} parameter(0)",
        f"%u = f32[16,128]{TILED} parameter(1)",
        "%i = s32[] parameter(2)",
        "%rows = s32[24]{0} parameter(3)",
        f"ROOT %c = {line}",
    )
    assert found.main == pytest.approx(size, abs=8)


def test_a_fusion_reads_what_it_slices_through_views_and_inner_fusions():
    inside = (
        "%inner () -> f32[] {\n"
        f"  %r = f32[8,128]{TILED} parameter(0)\n"
        f"  ROOT %v = f32[1,8,128]{{2,1,0}} bitcast(%r)\n}}\n"
    ) + fused(
        "%p = f32[1,800,128]{2,1,0:T(8,128)} parameter(0)",
        "%i = s32[] parameter(1)",
        "%b = f32[800,128]{1,0:T(8,128)} bitcast(%p)",
        f"%s = f32[8,128]{TILED} dynamic-slice(%b, %i, %i)",
        "%f = f32[1,8,128]{2,1,0} fusion(%s), kind=kLoop, calls=%inner",
        "ROOT %n = f32[1,8,128]{2,1,0:T(8,128)} negate(%f)",
    )
    found = moved(
        "%a = f32[1,800,128]{2,1,0:T(8,128)} parameter(0)",
        "%i = s32[]{:T(128)S(6)} parameter(1)",
        "ROOT %c = f32[1,8,128]{2,1,0:T(8,128)} fusion(%a, %i), kind=kLoop, calls=%fused",
        inside=inside,
    )
    assert found.main == 2 * 8 * 128 * 4


def test_a_fusion_that_updates_in_place_writes_the_update():
    inside = fused(
        f"%p = f32[800,128]{TILED} parameter(0)",
        f"%u = f32[8,128]{VMEM} parameter(1)",
        "%i = s32[] parameter(2)",
        f"%x = f32[8,128]{TILED} exponential(%u)",
        f"ROOT %d = f32[800,128]{TILED} dynamic-update-slice(%p, %x, %i, %i)",
    )
    found = moved(
        f"%a = f32[800,128]{TILED} parameter(0)",
        f"%u = f32[8,128]{VMEM} parameter(1)",
        "%i = s32[]{:S(6)} parameter(2)",
        f"ROOT %c = f32[800,128]{TILED} fusion(%a, %u, %i), kind=kLoop, calls=%fused",
        inside=inside,
    )
    assert found.main == 8 * 128 * 4
    assert found.chip == pytest.approx(8 * 128 * 4, abs=4)


@pytest.mark.parametrize(("alias", "size"), [("", 2), (", output_to_operand_aliasing={}", 0)])
def test_what_a_fusion_hands_through_is_a_copy_unless_it_is_aliased(alias, size):
    inside = fused(
        f"%p = f32[64,128]{TILED} parameter(0)",
        f"%q = f32[8,128]{VMEM} parameter(1)",
        f"%e = f32[8,128]{VMEM} exponential(%q)",
        f"ROOT %t = (f32[64,128]{TILED}, f32[8,128]{VMEM}) tuple(%p, %e)",
    )
    found = moved(
        f"%a = f32[64,128]{TILED} parameter(0)",
        f"%b = f32[8,128]{VMEM} parameter(1)",
        f"ROOT %c = (f32[64,128]{TILED}, f32[8,128]{VMEM}) fusion(%a, %b), calls=%fused{alias}",
        inside=inside,
    )
    assert found.main == size * 64 * 128 * 4
    assert found.chip == 2 * 8 * 128 * 4


@pytest.mark.parametrize(
    ("there", "here", "main", "chip", "host"),
    [(VMEM, TILED, 1, 1, 0), (TILED, VMEM, 1, 1, 0), (HOST, TILED, 1, 0, 1)],
)
def test_asynchronous_copies_between_memories(there, here, main, chip, host):
    size = 64 * 128 * 4
    found = moved(
        f"%a = f32[64,128]{here} parameter(0)",
        f"ROOT %c = (f32[64,128]{there}, f32[64,128]{here}, u32[]{{:S(2)}}) copy-start(%a)",
    )
    assert (found.main, found.chip, found.host) == (main * size, chip * size, host * size)


def test_an_asynchronous_slice_moves_the_slice():
    inside = (
        "%async () -> f32[] {\n"
        f"  %p = f32[800,128]{TILED} parameter(0)\n"
        f"  ROOT %s = f32[8,128]{VMEM} slice(%p), slice={{[0:8], [0:128]}}\n}}\n"
    )
    found = moved(
        f"%a = f32[800,128]{TILED} parameter(0)",
        f"ROOT %c = ((f32[800,128]{TILED}), f32[8,128]{VMEM}, s32[]) async-start(%a), calls=%async",
        inside=inside,
    )
    assert (found.main, found.chip) == (8 * 128 * 4, 8 * 128 * 4)


def test_scratch_of_a_library_call_is_not_traffic():
    found = moved(
        "%a = bf16[64,64]{1,0} parameter(0)",
        "ROOT %c = (bf16[64,64]{1,0}, s8[33554432]{0}) custom-call(%a, %a), "
        'custom_call_target="__cublas$gemm"',
    )
    assert found.main == 3 * 64 * 64 * 2
