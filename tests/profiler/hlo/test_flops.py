"""FLOPs: dots and convolutions as products of matrices, holes and padding left out."""

from itertools import product as every
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.profiler.hlo import read_matmuls, read_module
from shardwise.profiler.hlo.flops import matmul_flops, passes, vector_flops
from shardwise.work import Matmul


def module_of(*lines):
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m, is_scheduled=true\n\nENTRY %main () -> f32[] {{\n{body}\n}}\n"


def product(left, right, out, attributes, opcode="convolution", dtype="bf16"):
    """The matmul of one instruction over arrays of these dims."""
    text = module_of(
        f"%a = {dtype}[{left}]{{}} parameter(0)",
        f"%b = {dtype}[{right}]{{}} parameter(1)",
        f"ROOT %c = {dtype}[{out}]{{}} {opcode}(%a, %b), {attributes}",
    )
    (found,) = read_matmuls(text)
    return found


def test_a_dot_with_batch_dims():
    dims = "lhs_batch_dims={0}, lhs_contracting_dims={3}, rhs_batch_dims={0}, "
    found = product("4,5,6,7", "4,8,7", "4,5,6,8", dims + "rhs_contracting_dims={2}", "dot")
    assert found == Matmul(m=30, k=7, n=8, batch=4)


def test_a_ragged_dot_multiplies_each_row_by_one_matrix():
    found = product(
        "100,16",
        "8,16,32",
        "100,32",
        "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        "ragged-dot",
    )
    assert matmul_flops(found) == 2 * 100 * 16 * 32


@pytest.mark.parametrize(
    ("left", "right", "out", "attributes", "want"),
    [
        ("512,2048", "2048,4096", "512,4096", "dim_labels=bf_io->bf", (512, 2048, 4096, 1)),
        ("2048,512", "4096,2048", "512,4096", "dim_labels=fb_oi->bf", (512, 2048, 4096, 1)),
        # Sixteen products at once: every place of the dilated input meets one of the window.
        (
            "16,256,512",
            "16,512,384",
            "16,256,384",
            "window={size=16 stride=15 lhs_dilate=16}, dim_labels=0bf_0io->0bf",
            (256, 512, 384, 16),
        ),
        # Heads of one projection: all read the same x, so they are columns of one product.
        (
            "16,2048,6144,1",
            "6144,24,256,1",
            "16,2048,24,256",
            "window={size=1x24 pad=0_0x23_23 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f",
            (16 * 2048, 6144, 24 * 256, 1),
        ),
        # A contracted dim may be a window of full size with one output.
        (
            "4,8,32",
            "4,32,64",
            "1,8,64",
            "window={size=4}, dim_labels=0bf_0io->0bf",
            (8, 128, 64, 1),
        ),
        # 3 x 3 over 8 x 8, kept in size: the corners miss five places, the edges three.
        (
            "2,8,8,16",
            "3,3,16,32",
            "2,8,8,32",
            "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            (2 * 64, 16 * 22 * 22 / 64, 32, 1),
        ),
        # Depthwise: each of 64 features is its own product.
        (
            "2,100,64",
            "4,1,64",
            "2,97,64",
            "window={size=4}, dim_labels=b0f_0io->b0f, feature_group_count=64",
            (2 * 97, 4, 1, 64),
        ),
    ],
)
def test_convolutions_as_matmuls(left, right, out, attributes, want):
    found = product(left, right, out, attributes)
    assert (found.m, found.k, found.n, found.batch) == pytest.approx(want)


def test_products_of_gpu_libraries():
    numbers = (
        '"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],'
        '"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]'
    )
    config = f'{{"gemm_backend_config":{{"dot_dimension_numbers":{{{numbers}}}}}}}'
    text = module_of(
        "%a = bf16[16,256,512]{2,1,0} parameter(0)",
        "%b = bf16[16,512,384]{2,1,0} parameter(1)",
        "ROOT %c = (bf16[16,256,384]{2,1,0}, s8[33554432]{0}) custom-call(%a, %b), "
        f'custom_call_target="__cublas$lt$matmul", backend_config={config}',
    )
    assert read_matmuls(text) == (Matmul(m=256, k=512, n=384, batch=16),)
    conv = 'custom_call_target="__cudnn$convForward", dim_labels=b01f_o01i->b01f, '
    found = product(
        "2,8,8,16",
        "32,3,3,16",
        "2,8,8,32",
        conv + "window={size=3x3 pad=1_1x1_1}",
        "custom-call",
    )
    assert matmul_flops(found) == pytest.approx(2 * 2 * 32 * 16 * 22 * 22)


@given(
    inputs=st.integers(1, 9),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    low=st.integers(-2, 4),
    high=st.integers(-2, 4),
    dilate=st.integers(1, 4),
    spread=st.integers(1, 3),
)
def test_only_places_that_meet_an_input_count(inputs, kernel, stride, low, high, dilate, spread):
    reach = (kernel - 1) * spread + 1
    outputs = ((inputs - 1) * dilate + 1 + low + high - reach) // stride + 1
    if outputs < 1:
        return
    window = f"size={kernel} stride={stride} pad={low}_{high} lhs_dilate={dilate}"
    found = product(
        f"1,{inputs},2",
        f"{kernel},2,3",
        f"1,{outputs},3",
        f"window={{{window} rhs_dilate={spread}}}, dim_labels=b0f_0io->b0f",
    )
    places = {i * dilate for i in range(inputs)}
    met = sum(
        o * stride + k * spread - low in places for o, k in every(range(outputs), range(kernel))
    )
    assert matmul_flops(found) == pytest.approx(2 * met * 2 * 3)


@pytest.mark.parametrize(
    ("precision", "count"),
    [("", 1), ("operand_precision={highest,highest}", 6), ("operand_precision={high,high}", 3)],
)
def test_bf16_passes_of_a_float32_product(precision, count):
    text = module_of(
        "%a = f32[8,8]{} parameter(0)",
        f"ROOT %c = f32[8,8]{{}} dot(%a, %a), lhs_contracting_dims={{1}}, {precision}",
    )
    assert passes(read_module(text).computations["main"].root) == count


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("tanh(%a)", 64 * 32),
        ("copy(%a)", 0),
        ("sort(%a), dimensions={1}, to_apply=%less", 64 * 32 * 5),
        ("cholesky(%a)", 64 * 32 * 32 / 3),
        ("fft(%a), fft_type=FFT, fft_length={32}", 5 * 64 * 32 * 5),
    ],
)
def test_vector_operations(line, count):
    text = module_of("%a = f32[64,32]{} parameter(0)", f"ROOT %r = f32[64,32]{{}} {line}")
    module = read_module(text)
    entry = module.computations["main"]
    assert vector_flops(module, entry, entry.root) == pytest.approx(count)


def test_a_reduction_reads_every_input_once():
    text = module_of(
        "%a = f32[64,32]{} parameter(0)",
        "%z = f32[] constant(0)",
        "%r = f32[64]{} reduce(%a, %z), dimensions={1}, to_apply=%add",
        "ROOT %w = f32[16,8]{} reduce-window(%a, %z), window={size=4x4 stride=4x4}, to_apply=%add",
    )
    module = read_module(text)
    entry = module.computations["main"]
    assert vector_flops(module, entry, entry.names["r"]) == prod((64, 32))
    assert vector_flops(module, entry, entry.root) == 16 * 8 * 16


SLICED = """HloModule m, is_scheduled=true

%f (a: f32[64], at: s32[]) -> f32[8] {{
  %a = f32[64]{{0}} parameter(0)
  %at = s32[] parameter(1)
  %b = f32[64]{{0}} tanh(%a)
  %both = f32[128]{{0}} concatenate(%b, %a), dimensions={{0}}
  %few = f32[8]{{0}} dynamic-slice(%both, %at), dynamic_slice_sizes={{8}}
  %other = f32[8]{{0}} {other}
  ROOT %r = f32[8]{{0}} add(%few, %other)
}}

ENTRY %main (a: f32[64], at: s32[]) -> f32[8] {{
  %a = f32[64]{{0}} parameter(0)
  %at = s32[] parameter(1)
  ROOT %r = f32[8]{{0}} fusion(%a, %at), kind=kLoop, calls=%f
}}
"""


@pytest.mark.parametrize(
    ("other", "computed"),
    [
        ("slice(%a), slice={[0:8]}", 8),
        ("slice(%b), slice={[0:8]}", 8),
        ("sort(%b), dimensions={0}, to_apply=%less", 64),
    ],
)
def test_a_fusion_computes_nothing_that_its_slices_leave_out(other, computed):
    """What something else reads whole is computed whole."""
    module = read_module(SLICED.format(other=other))
    entry = module.computations["main"]
    sort = 8 * 3 if "sort" in other else 0
    assert vector_flops(module, entry, entry.root) == computed + 8 + sort
