"""What software keeps of an autograd tape: fused kernels and quantised inputs."""

import pytest
from tests.planner.steps import EXPERTS_PER_TOKEN, FE, D, F, N, dense, moe, step

from shardwise.planner.step.strategies.remat import kept_activations, saved_bytes
from shardwise.planner.step.work import train_work
from shardwise.plans import TrainDtypes

TOKENS = 512


def kept(cfg, stack, compute="bf16"):
    """Names and bytes of what is kept of one layer."""
    shape = step(choices={"stack": stack}, dtypes=TrainDtypes(compute=compute))
    saved = kept_activations(cfg, cfg.groups[0], shape)
    return {a.name for a in saved}, float(saved_bytes(saved, shape, "keep"))


def test_a_fused_kernel_keeps_the_inputs_of_an_activation_alone():
    """Of gate, up, the activated gate and the product the third is computed again."""
    (tape, all_of_it), (fused, less) = (kept(dense(), s) for s in ("fsdp", "megatron"))
    assert tape - fused == {"mlp activated"}
    assert all_of_it - less == pytest.approx(TOKENS * F * 2)


@pytest.mark.parametrize("remat", ["none", "block"])
def test_a_compiled_loop_moves_what_it_keeps_nine_times(remat):
    cfg = dense()
    moved = {}
    for stack in ("jax", "xla"):
        shape = step(remat=remat, choices={"stack": stack})
        ops = train_work(cfg, shape).where(lambda op: op.id.endswith(".kept"))
        moved[stack] = float(ops.hbm_bytes())
    size = saved_bytes(kept_activations(cfg, cfg.groups[0], shape), shape, "keep")
    assert moved == {"jax": pytest.approx(9 * cfg.layers * float(size)), "xla": 0}


def test_experts_that_are_weighed_before_their_last_matmul_keep_no_result():
    (tape, all_of_it), (fused, less) = (kept(moe(), s) for s in ("fsdp", "megatron"))
    assert tape - fused == {"experts activated", "experts.down output"}
    assert all_of_it - less == pytest.approx(TOKENS * EXPERTS_PER_TOKEN * (FE + D) * 2)


def test_inputs_of_quantised_matmuls_are_kept_as_they_are_read():
    """Two norms and the product in a byte less each, and a copy of attention's output in one."""
    (_, wide), (_, narrow) = (kept(dense(), "megatron", c) for c in ("bf16", "fp8"))
    width = dense().groups[0].attention.heads * dense().groups[0].attention.head_dim
    assert width == N * 8
    assert wide - narrow == pytest.approx(TOKENS * (2 * D + F - width))


def test_software_that_casts_again_keeps_inputs_wide():
    """torchao's float8 linear keeps its input as it was."""
    assert kept(dense(), "fsdp", "fp8") == kept(dense(), "fsdp")


def test_what_the_router_reads_stays_wide():
    (_, wide), (_, narrow) = (kept(moe(), "megatron", c) for c in ("bf16", "fp8"))
    routed = EXPERTS_PER_TOKEN * (D + FE)
    assert wide - narrow == pytest.approx(TOKENS * (D + routed - N * 8))
