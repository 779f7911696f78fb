"""Pools of pages, and what our engine pads its steps to."""

import pytest

from shardwise.models import load_model
from shardwise.plans.serve import ServePlan
from shardwise.plans.served_steps import (
    emitting_rows,
    most_rows,
    prompt_tokens,
    served_parts,
)


@pytest.mark.parametrize(
    ("batch", "rows"), [(1, 2), (2, 2), (3, 4), (8, 8), (9, 16), (18, 24), (28, 32), (33, 40)]
)
def test_rows_are_a_power_of_two_or_whole_eights(batch, rows):
    assert most_rows(batch) == rows


def test_sequences_lie_apart_over_devices_that_share_a_head():
    cfg = load_model("llama-3-70b")  # 8 KV heads
    mesh = {"data": 2, "tensor": 16}
    assert served_parts(cfg, mesh, "heads", 64).pools == 2
    assert served_parts(cfg, mesh, "heads_then_batch", 64).pools == 4
    few = served_parts(cfg, {"tensor": 32}, "heads_then_batch_then_sequence", 2)
    assert (few.spread, few.cuts, few.pools) == (4, 2, 2)
    # A latent cache is one head, whatever tensor is.
    latent = served_parts(load_model("deepseek-v3"), {"tensor": 8}, "heads_then_batch", 64)
    assert latent.pools == 8


def test_a_chunk_is_parted_over_the_pools_in_whole_blocks():
    plan = ServePlan(
        model="llama-3-8b",
        model_hash="",
        slice="v5e:2x4",
        mesh={"tensor": 8},
        box=(2, 4),
        batch=8,
        input_length=1000,
        output_length=10,
    )
    assert prompt_tokens(plan, 1) == 1008
    assert prompt_tokens(plan, 4) == 256
    assert emitting_rows(0, 8) == 0
    assert emitting_rows(16, 8) == 2
    assert emitting_rows(1008, 8) == 8
