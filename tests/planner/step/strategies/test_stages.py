"""Memory of pipeline stages: who holds what, and how many microbatches."""

import numpy as np
import pytest
from tests.planner.steps import LAYER, PARAMS, D, L, V, dense, moe, named, step

from shardwise.planner.price.memory import stage_memory, train_memory
from shardwise.planner.step.work import train_work
from shardwise.plans import TrainDtypes
from shardwise.scheduling import pipeline_schedule

KEPT = 4 * 128 * D * 2
"""Block inputs of one layer and microbatch."""


def shape(schedule="1f1b", stages=3, microbatches=6.0, chunks=1, **fields):
    choices = {"pipeline_schedule": schedule, "virtual_stages": chunks}
    return step(stage=stages, microbatches=microbatches, choices=choices, remat="block", **fields)


def held_by_table(schedule, stages, microbatches, chunks, rank):
    """Largest number of microbatches between their forward and the end of their backward pass on
    one rank, in units of its chunks, walked through the schedule's own table."""
    table = pipeline_schedule(schedule, stages, microbatches, chunks)
    last = "W" if table.splits_backward else "B"
    held = most = 0
    for action in table.ranks[rank]:
        held += action.kind == "F"
        most = max(most, held)
        held -= action.kind == last
    return most / (1 if schedule == "dualpipe" else chunks)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "chunks"),
    [
        ("gpipe", 4, 8, 1),
        ("1f1b", 4, 8, 1),
        ("1f1b", 4, 4, 1),
        ("interleaved", 4, 8, 2),
        ("interleaved", 2, 8, 3),
    ],
)
def test_every_rank_holds_what_its_table_says(schedule, stages, microbatches, chunks):
    for rank in range(stages):
        got = shape(schedule, stages, float(microbatches), chunks).in_flight(float(rank))
        want = held_by_table(schedule, stages, microbatches, chunks, rank)
        assert float(got) == pytest.approx(want), rank


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v", "dualpipe"])
def test_split_schedules_hold_as_many_on_the_fullest_rank(schedule):
    chunks = 1 if schedule == "zb_h1" else 2
    got = shape(schedule, 4, 12.0, chunks).in_flight(0.0)
    want = max(held_by_table(schedule, 4, 12, chunks, rank) for rank in range(4))
    assert float(got) == pytest.approx(want)


def test_stages_have_their_own_layers_ends_and_microbatches():
    first, middle, last = stage_memory(dense(), shape(), (1, 1, 1))
    kinds = [dict(t.points)["backward"] for t in (first, middle, last)]
    assert [float(k["params"]) for k in kinds] == [
        2 * (LAYER + V * D),
        2 * LAYER,
        2 * (LAYER + V * D + D),
    ]
    assert [float(k["checkpoints"]) for k in kinds] == [3 * KEPT, 2 * KEPT, KEPT]
    assert "loss" in dict(last.points)
    assert "loss" not in dict(first.points)


def test_the_whole_is_as_full_as_its_fullest_stage():
    whole = float(train_memory(dense(), shape()).peak())
    stages = [float(t.peak()) for t in stage_memory(dense(), shape(), (1, 1, 1))]
    assert whole == pytest.approx(max(stages))


def test_one_stage_is_the_whole():
    alone = step(remat="block")
    (only,) = stage_memory(dense(), alone, (L,))
    assert float(only.peak()) == pytest.approx(float(train_memory(dense(), alone).peak()))
    assert float(dict(only.points)["backward"]["params"]) == 2 * PARAMS


def test_a_v_keeps_both_ends_on_its_first_rank():
    first, _, last = stage_memory(dense(), shape("zb_v", 3, 6.0, 2), (1, 1, 1))
    ends = 2 * V * D + D
    assert float(dict(first.points)["backward"]["params"]) == 2 * (LAYER + ends)
    assert float(dict(last.points)["backward"]["params"]) == 2 * LAYER


def test_dualpipe_holds_its_layers_twice():
    """DeepSeek-V3, table 2: twice the parameters; S + 1 microbatches."""
    two = shape("dualpipe", 2, 4.0, 2, dtypes=TrainDtypes())
    kinds = dict(stage_memory(dense(num_hidden_layers=2), two, (1, 1))[0].points)["backward"]
    ends = 2 * V * D + D
    assert float(kinds["params"]) == 2 * (2 * LAYER + ends)
    assert float(kinds["optimizer"]) == 12 * (LAYER + ends)
    assert float(kinds["checkpoints"]) == 3 * KEPT


def test_interleaved_chunks_send_activations_as_often():
    """Each of v chunks passes its activations on: v times the transfers (arXiv 2104.04473)."""
    one, two = (
        train_work(dense(num_hidden_layers=6), shape(kind, 3, 6.0, chunks))
        for kind, chunks in (("1f1b", 1), ("interleaved", 2))
    )
    bytes_ = [
        w.where(lambda o: o.name == "transfer.stage").collective_bytes("permute")
        for w in (one, two)
    ]
    assert bytes_[1] == pytest.approx(2 * bytes_[0])
    assert named(one, "transfer.stage").collective.bytes == 4 * 128 * D * 2


def test_gradients_beside_their_sums():
    """PyTorch: a microbatch's bf16 gradients stand beside the f32 sums when its backward pass is
    over; Megatron-LM's matmuls add to the sums themselves."""
    dtypes = TrainDtypes(grad="f32")
    extra = []
    for stack in ("fsdp", "megatron"):
        points = dict(
            train_memory(
                dense(), step(microbatches=4.0, dtypes=dtypes, choices={"stack": stack})
            ).points
        )
        extra.append(
            float(points["gradients"]["transient"]) - float(points["backward"]["transient"])
        )
        # One microbatch less is in flight then: here none.
        assert float(points["gradients"]["checkpoints"]) == 0
    assert extra == [2 * PARAMS, 0]


def test_logits_of_software_that_runs_op_by_op():
    """nanotron: bf16 logits and gradient, f32 copy and probabilities: 12 bytes (its published
    peaks of single-stage runs, where the loss is the peak, are met within 3 % in the median)."""
    sizes = [
        float(dict(train_memory(dense(), step(choices={"stack": s})).points)["loss"]["transient"])
        for s in ("xla", "nanotron")
    ]
    assert sizes[1] / sizes[0] == 12 / 4  # XLA holds the f32 logits alone


def test_memory_broadcasts_over_candidates():
    degrees = {"fsdp": np.array([1.0, 2.0]), "stage": np.array([1.0, 3.0])}
    from dataclasses import replace

    columns = replace(
        step(microbatches=np.array([1.0, 6.0]), stage_share=1 / degrees["stage"]), degrees=degrees
    )
    together = train_memory(moe(), columns).peak()
    for i, microbatches in enumerate((1.0, 6.0)):
        mesh = {a: float(d[i]) for a, d in degrees.items() if d[i] > 1}
        alone = train_memory(moe(), step(microbatches=microbatches, **mesh)).peak()
        assert together[i] == pytest.approx(float(alone))


def test_dualpipe_s_copies_sum_their_gradients():
    """Two copies of every layer per device: ZeRO-0 sends both bf16 gradients to the device
    opposite, ZeRO-1 half of each and gets the parameters' halves back."""
    local = LAYER + 2 * V * D + D
    for zero, wires in ((0, 2), (1, 2)):
        fields = {"zero": zero, "dtypes": TrainDtypes()}
        work = train_work(dense(num_hidden_layers=2), shape("dualpipe", 2, 4.0, 2, **fields))
        mirror = work.where(lambda o: o.name.endswith(".mirror"))
        assert mirror.collective_bytes("permute") == pytest.approx(wires * 2 * local)
    assert not train_work(dense(), shape()).where(lambda o: o.name.endswith(".mirror")).ops
