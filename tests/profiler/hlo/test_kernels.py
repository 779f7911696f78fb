"""FLOPs of attention kernels, which carry no estimate of their own."""

import json

import pytest

from shardwise.hardware import parse_slice
from shardwise.profiler.hlo import module_work, read_module
from shardwise.profiler.timeline import schedule

QUERIES = "bf16[{B},{N},{T},{H}]{{3,2,1,0}}"
KEYS = "bf16[{B},{K},{T},{H}]{{3,2,1,0}}"


def call(kernel, *, B=2, N=4, K=4, T=2048, H=128, grid=(4, 4), mask=True, places=True):
    """A module with one splash kernel over an attention of this shape; under a mask it is given the
    `places` of the queries."""
    q, k = (text.format(B=B, N=N, K=K, T=T, H=H) for text in (QUERIES, KEYS))
    tiles = f"s8[1,{grid[0]},{grid[1]}]{{2,1,0}}"
    names = "%next, %tiles, %q, %k, %v" if mask else "%q, %k, %v"
    names += ", %places" if mask and places else ""
    return f"""HloModule m, is_scheduled=true, num_partitions=1

ENTRY %main () -> {q} {{
  %next = {tiles} parameter(0)
  %tiles = {tiles} parameter(1)
  %q = {q} parameter(2)
  %k = {k} parameter(3)
  %v = {k} parameter(4)
  %places = s32[{T},128]{{1,0}} parameter(5)
  ROOT %{kernel}.1 = {q} custom-call({names}), custom_call_target="tpu_custom_call", \
metadata={{op_name="jit(f)/{kernel}/pallas_call"}}
}}
"""


def only(text):
    (op,) = module_work(read_module(text)).ops
    return op


@pytest.mark.parametrize(
    ("kernel", "products"),
    [
        ("splash_mha_fwd_residuals", 2),
        ("splash_mha_fwd_segmented_no_residuals", 2),
        ("splash_mqa_fwd_no_residuals", 2),
        ("splash_mha_dq_no_residuals", 1),
        ("splash_mha_dkv_no_residuals", 4),
    ],
)
def test_products_of_scores_by_heads(kernel, products):
    found = only(call(kernel, mask=False))
    assert found.op.op_class == "attention"
    assert float(found.op.flops["bf16"]) == products * 2 * 2 * 4 * 2048**2 * 128


@pytest.mark.parametrize(
    ("grid", "share"), [((4, 4), 8 / 16), ((8, 8), 32 / 64), ((8, 2), 8 / 64), ((1, 1), 0.5)]
)
def test_scores_below_the_diagonal_and_within_the_window(grid, share):
    whole = only(call("splash_mha_fwd_residuals", mask=False)).op.flops["bf16"]
    found = only(call("splash_mha_fwd_residuals", grid=grid)).op.flops["bf16"]
    assert float(found) == pytest.approx(share * float(whole))


def test_blocks_without_a_mask_are_whole():
    whole = only(call("splash_mha_fwd_residuals", mask=False)).op.flops["bf16"]
    found = only(call("splash_mha_fwd_residuals", places=False)).op.flops["bf16"]
    assert float(found) == float(whole)


def test_grouped_heads_score_for_each_query_head():
    found = only(call("splash_mha_fwd_residuals", N=8, K=2, mask=False))
    assert float(found.op.flops["bf16"]) == 2 * 2 * 2 * 8 * 2048**2 * 128


def test_another_kernel_stays_unknown():
    found = only(call("ragged_paged_attention"))
    assert found.op.op_class == "unknown"
    assert not found.op.flops


def test_attention_is_priced_at_its_own_share_of_the_peak():
    work = module_work(read_module(call("splash_mha_fwd_residuals", B=64)))
    piece = parse_slice("v5e:1x1")
    (row,) = schedule(work, piece).rows
    rates = piece.chip.efficiency
    math = row.flops / piece.chip.peak("bf16") / (rates.attention * rates.sustained)
    assert row.bound_by == "math"
    assert row.seconds == pytest.approx(math + rates.matmul_ramp)


def test_narrow_heads_cost_what_those_of_a_tile_do():
    def seconds(H):
        work = module_work(read_module(call("splash_mha_fwd_residuals", B=64, H=H)))
        (row,) = schedule(work, parse_slice("v5e:1x1")).rows
        return row.seconds

    assert seconds(64) == pytest.approx(seconds(128))
    assert seconds(80) == pytest.approx(seconds(128))
    assert seconds(256) == pytest.approx(2 * seconds(128), rel=1e-3)


CUDNN = """HloModule m, is_scheduled=true, num_partitions=1

ENTRY %main () -> bf16[{B},{N},{T},128] {{
  %q = bf16[{B},{T},{N},128]{{3,2,1,0}} parameter(0)
  %k = bf16[{B},{S},{K},128]{{3,2,1,0}} parameter(1)
  %v = bf16[{B},{S},{K},128]{{3,2,1,0}} parameter(2)
  %stats = f32[{B},{N},{T}]{{2,1,0}} parameter(3)
  %given = bf16[{B},{T},{N},128]{{3,2,1,0}} parameter(4)
  %fwd = (bf16[{B},{N},{T},128]{{3,1,2,0}}, f32[{B},{N},{T}]{{2,1,0}}, u8[64]{{0}}) \
custom-call(%q, %k, %v), custom_call_target="__cudnn$fmhaSoftmax", \
metadata={{op_name="jit(f)/attention/custom_partitioning"}}, backend_config={config}
  %bwd = (bf16[{B},{N},{T},128]{{3,1,2,0}}, bf16[{B},{K},{S},128]{{3,1,2,0}}, \
bf16[{B},{K},{S},128]{{3,1,2,0}}, u8[4096]{{0}}) custom-call(%q, %k, %v, %stats, %given, %given), \
custom_call_target="__cudnn$fmhaSoftmaxBackward", \
metadata={{op_name="jit(f)/transpose(attention)/custom_partitioning"}}, backend_config={config}
  ROOT %out = bf16[{B},{N},{T},128]{{3,1,2,0}} get-tuple-element(%fwd), index=0
}}
"""


def cudnn(*, B=2, N=32, K=8, T=2048, S=2048, mask="CAUSAL", window=0):
    """Forward and backward of cuDNN's attention, as XLA writes their calls."""
    config = {"fmha_scale": 0.1, "mask_type": mask, "sliding_window_length": window}
    text = json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": config})
    return module_work(read_module(CUDNN.format(B=B, N=N, K=K, T=T, S=S, config=text))).ops


@pytest.mark.parametrize(
    ("named", "pairs"),
    [
        ({"mask": "NO_MASK"}, 2048**2),
        ({}, 2048 * 2049 / 2),
        ({"mask": "CAUSAL", "window": 512}, 512 * 513 / 2 + (2048 - 512) * 512),
        ({"mask": "PADDING_CAUSAL", "T": 128, "S": 128}, 128 * 129 / 2),
    ],
    ids=str,
)
def test_attention_of_cudnn_counts_what_its_mask_leaves(named, pairs):
    """Two products of 128 dims forward and five backward, for each pair that a query sees."""
    forward, backward = (op for op in cudnn(**named) if op.op.op_class == "attention")
    assert forward.op.flops == {"bf16": 2 * 32 * pairs * 2 * 128 * 2}
    assert backward.op.flops["bf16"] == 2.5 * forward.op.flops["bf16"]
    assert forward.op.head_dims == (128, 128)


def test_attention_of_cudnn_reads_keys_and_values_once_and_its_scratch_is_none():
    forward, backward = (op for op in cudnn() if op.op.op_class == "attention")
    queries, keys, stats = 2 * 2048 * 32 * 128 * 2, 2 * 2048 * 8 * 128 * 2, 2 * 32 * 2048 * 4
    assert forward.op.hbm_bytes == 2 * queries + 2 * keys + stats
    # Read: q, k, v, statistics, the output and its gradient; written: dq, dk, dv.
    assert backward.op.hbm_bytes == 4 * queries + 4 * keys + stats
    assert not any(op.note for op in cudnn())


PAGED = """HloModule m, is_scheduled=true, num_partitions=1

ENTRY %main () -> (f32[8,1,8,128], f32[8,1,8,128]) {
  %table = s32[512]{0} parameter(0)
  %q = bf16[8,1,8,128]{3,2,1,0} parameter(1)
  %offsets = s32[1,128]{1,0} parameter(2)
  %pages = bf16[4,600,64,128]{3,2,1,0} parameter(3)
  ROOT %paged_softmax.1 = (f32[8,1,8,128]{3,2,1,0}, f32[8,1,8,128]{3,2,1,0}) \
custom-call(%table, %q, %offsets, %pages, %pages), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(f)/paged_softmax/pallas_call"}, backend_config={"custom_call_config": \
{"cost_estimate":{"flops":"1000000","transcendentals":"10","bytes_accessed":"500000"}}}
}
"""


def test_our_kernel_of_pages_reads_what_it_states():
    """Not the whole cache, which two of its operands are: the pages of its rows, and its queries,
    numbers and answers whole."""
    found = only(PAGED)
    assert found.op.op_class == "attention"
    assert float(found.op.flops["bf16"]) == 1e6
    others = 512 * 4 + 8 * 8 * 128 * 2 + 128 * 4 + 2 * 8 * 8 * 128 * 4
    assert float(found.op.hbm_bytes) == pytest.approx(500000 + others, rel=0.02)


PAGES_OF_A_GPU = """HloModule m, is_scheduled=true, num_partitions=1

ENTRY %main () -> f32[2,64,8,16,128] {
  %q = bf16[64,8,4,128]{3,2,1,0} parameter(0)
  %at = s32[2]{0} parameter(1)
  %places = s32[64]{0} parameter(2)
  %table = s32[64,32]{1,0} parameter(3)
  %k = bf16[4,4096,64,1024]{3,2,1,0} parameter(4)
  %v = bf16[4,4096,64,1024]{3,2,1,0} parameter(5)
  ROOT %pallas_call = f32[2,64,8,16,128]{4,3,2,1,0} \
custom-call(%q, %at, %places, %table, %k, %v), custom_call_target="__gpu$xla.gpu.triton", \
metadata={op_name="jit(f)/paged_softmax_1x4_of_128_128/pallas_call"}
}
"""


def test_our_kernel_for_gpus_reads_what_full_tables_name_and_no_more():
    op = only(PAGES_OF_A_GPU).op
    places = 64 * 32 * 64
    assert op.op_class == "attention"
    assert float(op.flops["bf16"]) == 2 * 8 * 4 * (128 + 128) * places
    written = 4 * 2 * 64 * 8 * 16 * 128
    assert float(op.hbm_bytes) == pytest.approx(2 * 2 * 1024 * places + written, rel=0.01)
