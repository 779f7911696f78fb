"""Chapter 9, profiling: the example profile, read from a program compiled for the same cores.

`tests/kept/ffw.hlo.gz` is what libtpu makes of the book's feed-forward block for eight v2 cores,
4-way data parallel and 2-way model parallel (`scripts/kept_programs.py`).
`9.q2` and `9.mem` were measured and gate nothing.
"""

import pytest

from book.oracle import TESTED, check, entry
from kept import hlo
from shardwise.commands.base.inputs import Hardware
from shardwise.hardware import place
from shardwise.profiler.hlo import (
    module_work,
    read_collectives,
    read_groups,
    read_module,
    read_shape,
    recover_mesh,
)
from shardwise.roofline.chip_roofline import math_seconds
from shardwise.roofline.price import price_op
from shardwise.sharding import Mesh

TESTED |= {"9.q2", "9.mem"}

MESH = Mesh.parse("x=2,y=2,core=2")
"""x and y are the chips, data parallel; the cores of a chip are model parallel."""


@pytest.fixture(scope="module")
def ffw():
    return module_work(read_module(hlo("ffw")), MESH)


@entry("9.ffw")
def test_ffw(e, ffw):
    product = ffw.ops[0].op
    cores = e["inputs"]["cores"]
    assert float(ffw.work.flops()) == 2 * 2 * 32 * 1024 * 8192 * 32768 / cores
    check(e, math_seconds(sum(product.flops.values()), e["inputs"]["peak"]))


@entry("9.local")
def test_local_shapes(e, ffw):
    product = ffw.ops[0].op.matmul
    assert product.k == 8192
    check(e, [product.m // 1024, product.n])


def test_the_reduce_scatter_of_the_second_product_is_found(ffw):
    assert [item.op.op_class for item in ffw.ops] == ["matmul", "matmul", "collective"]
    assert "calls=%all-reduce-scatter" in hlo("ffw")
    product, op = ffw.ops[1].op.matmul, ffw.ops[2].op
    assert (product.m, product.k, product.n) == (8 * 1024, 16384, 8192)
    assert op.collective.kind == "reduce_scatter"
    assert op.collective.axes == ("core",)
    assert op.collective.bytes == 2 * 8 * 1024 * 8192


def test_times_of_the_example_profile(ffw):
    """96 ms and 1.13 ms in the profile. The catalogue has no link between the cores of a v2 chip;
    the book takes the one between chips."""
    hardware = Hardware(constants="book", overrides=["chip.device_link_oneway=62e9"])
    piece = hardware.slice("v2:2x2").slice
    placement = place(piece, dict(MESH))
    seconds = [float(price_op(item.op, piece.chip, placement).derated) for item in ffw.ops]
    assert seconds[:2] == pytest.approx([0.096, 0.096], rel=0.05)
    assert seconds[2] == pytest.approx(0.00113, rel=0.05)
    # The compiler's own cycles say the same at the chip's 700 MHz.
    assert ffw.ops[0].cycles / piece.chip.clock_hz == pytest.approx(0.096, rel=0.05)


@entry("9.qproj")
def test_query_projection(e):
    rows, d, heads, width = 32 // 4 * 1024, 8192, 32 // 2, 256
    check(e, math_seconds(2 * rows * d * heads * width, 23e12))


@entry("9.tiling")
def test_tiling(e):
    array = read_shape("f32[3,5]{1,0:T(2,2)}")
    check(e, [round(array.padded_bytes / 4), array.padded_bytes / array.bytes])


@entry("9.tiling_bf16")
def test_tiling_of_16_bits(e):
    array = read_shape("bf16[4,8]{1,0:T(2,4)(2,1)}")
    check(e, [array.offset(at) for at in ((1, 0), (0, 1), (2, 0), (0, 4), (3, 7))])


PROFILE = """HloModule quiz, is_scheduled=true, num_partitions=128

%fused_computation (a: bf16[4096,8192], b: bf16[8192]) -> bf16[4096] {{
  %a = bf16[4096,8192]{{1,0}} parameter(0)
  %b = bf16[8192]{{0}} parameter(1)
  ROOT %dot = bf16[4096]{{0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

%sum (l: bf16[], r: bf16[]) -> bf16[] {{
  %l = bf16[] parameter(0)
  %r = bf16[] parameter(1)
  ROOT %add = bf16[] add(%l, %r)
}}

ENTRY %main (w: bf16[4096,8192], x: bf16[8192]) -> bf16[4096] {{
  %w = bf16[4096,8192]{{1,0}} parameter(0)
  %x = bf16[8192]{{0}} parameter(1)
  %fusion = bf16[4096]{{0}} fusion(%w, %x), kind=kLoop, calls=%fused_computation
  ROOT %all-reduce = bf16[4096]{{0}} all-reduce(%fusion), replica_groups={groups}, to_apply=%sum
}}
"""


@entry("9.q1")
def test_a_profile_tells_its_shapes(e):
    """The groups say 8-way model parallelism; F is 8 times the local rows of the weights, and the
    one local row of the activations is one of 8 (the question's answer is [8, 8192])."""
    first = e["inputs"]["groups"]
    every = ",".join("{" + ",".join(str(d + i) for d in first) + "}" for i in range(16))
    module = read_module(PROFILE.format(groups="{" + every + "}"))
    (reduced,) = read_collectives(module)
    assert reduced.groups == read_groups("{" + every + "}", 128)
    degree = recover_mesh([reduced.groups], module.devices)["a0"]
    (product,) = (o.op.matmul for o in module_work(module).ops if o.op.matmul)
    rows, columns = max(product.m, product.n), min(product.m, product.n)
    check(e, [degree, rows * degree, columns * degree])
