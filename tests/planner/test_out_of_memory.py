"""Texts of out-of-memory errors, and the arrays of a plan that they are about."""

import pytest

from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.out_of_memory import read_failure
from shardwise.planner.step_arrays import arrays_near, step_arrays
from shardwise.plans import TrainPlan

GIB = 2.0**30
TODAY = """[rank3]: Traceback (most recent call last):
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 3 has a total
capacity of 79.10 GiB of which 1.25 GiB is free. Including non-PyTorch memory, this process has
77.85 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 512.00 MiB
is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting
[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 4 has
"""
BEFORE = """RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.75 GiB total
capacity; 14.00 GiB already allocated; 0 bytes free; 14.50 GiB reserved in total by PyTorch)"""
XLA = """jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of
memory in memory space hbm. Used 17.20G of 15.75G hbm. Exceeded hbm capacity by 1.45G.

Total hbm usage >= 17.45G:
    reserved        258.00M
    program          17.20G

  Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_name="jit(train_step)/jit(main)/logits/dot_general"
     Shape: f32[8,4096,16384]{2,1,0:T(8,128)}
     Unpadded size: 2.00G
     XLA label: fusion.12
     ==========================

  2. Size: 512.00M
     Shape: bf16[32,8,1024,1024]{3,2,1,0:T(8,128)(2,1)}
     XLA label: fusion.7
     ==========================
"""
RUNTIME = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (TODAY, (3.91, 77.85, 79.10, 0.5, 2.66)),
        (BEFORE, (20 / 1024, 15.75, 15.75, 0.5, 20 / 1024)),
        (XLA, (1.45, 17.20, 15.75, 0, 1.45)),
        (RUNTIME, (16, 0, 0, 0, 0)),
    ],
    ids=["pytorch", "pytorch before 2.1", "xla", "xla at run time"],
)
def test_the_figures_of_an_error(text, figures):
    found = read_failure(text)
    read = (found.wanted, found.held, found.capacity, found.idle, found.short)
    assert read == pytest.approx([GIB * figure for figure in figures])


def test_the_table_of_a_compiler():
    first, second = read_failure(XLA).buffers
    assert (first.size, first.shape) == (2 * GIB, "f32[8,4096,16384]")
    assert first.op == "jit(train_step)/jit(main)/logits/dot_general"
    assert (second.size, second.op) == (GIB / 2, "fusion.7")


def test_a_text_without_an_error_is_refused():
    with pytest.raises(BadRequest, match="no out-of-memory error that is known"):
        read_failure("Segmentation fault")


def test_an_array_is_known_by_its_size():
    plan = load_plan("audit:megatron-16b")
    assert isinstance(plan, TrainPlan)
    cfg, piece = load_model(plan.model), parse_slice(plan.slice)
    answer = evaluate_train(plan, cfg, piece)
    tokens = plan.global_batch_sequences * plan.sequence_length
    tokens /= plan.batch_shards * plan.microbatches
    size = 4 * tokens * cfg.vocabulary / plan.degree("tensor")
    assert arrays_near(answer, size)[0].name.startswith("the logits of one microbatch in float32")
    assert not arrays_near(answer, 1e15)
    assert {one.kind for one in step_arrays(answer)} >= {"transient", "params", "gradients"}
