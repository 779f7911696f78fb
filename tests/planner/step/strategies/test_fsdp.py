"""Where parameters are stored, when they are gathered, and what replicates them."""

import numpy as np
import pytest
from tests.planner.steps import LAYER, PARAMS, D, V, dense, over, runs, step

from shardwise.planner.price.memory import train_memory
from shardwise.planner.step.work import train_work
from shardwise.plans import TrainDtypes

L = 3


def params(shape, point="backward"):
    return float(dict(train_memory(dense(), shape).points)[point]["params"])


def test_axes_that_do_not_store_replicate():
    """Megatron: context copies parameters like data, and ZeRO-1 cuts the optimizer over both."""
    stored, copied = (
        step(context=4, fsdp=2, choices={"storage_axes": axes})
        for axes in (("fsdp", "expert", "context"), ("fsdp",))
    )
    assert params(stored) == pytest.approx(2 * PARAMS / 8)
    assert params(copied) == pytest.approx(2 * PARAMS / 2)
    optimizer = dict(train_memory(dense(), copied).points)["backward"]["optimizer"]
    assert float(optimizer) == pytest.approx(12 * PARAMS / 8)
    wires = over(train_work(dense(), copied), "context")
    reduced = wires.where(lambda o: o.name.startswith("reduce."))
    assert reduced.collective_bytes("reduce_scatter") == pytest.approx(2 * PARAMS / 2)
    assert not wires.where(lambda o: o.name.startswith("gather.")).ops


def test_without_resharding_a_microbatch_gathers_once():
    kept = {"weight_gather": "per_microbatch"}
    wires = over(train_work(dense(), step(fsdp=8, microbatches=4.0, choices=kept)), "fsdp")
    assert wires.collective_bytes("all_gather") == pytest.approx(4 * 2 * PARAMS)
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(4 * 2 * PARAMS)


def test_without_resharding_pipeline_stages_gather_once_per_step():
    """Some microbatch is always between its passes, so the layers stay gathered; the ends' gathers
    run per microbatch."""
    kept = {"weight_gather": "per_microbatch"}
    shape = step(fsdp=8, microbatches=6.0, stage=3, choices=kept)
    work = train_work(dense(), shape)
    layers = work.where(lambda o: o.body.startswith("forward.") and o.name == "gather.params")
    assert layers.collective_bytes() == pytest.approx(2 * LAYER)
    assert not [o for o in work.ops if o.body.startswith("backward") and o.name == "gather.params"]


def test_gathered_layers_that_stay_take_room():
    """Three layers whole instead of one at a time."""
    transient = [
        float(
            dict(train_memory(dense(), step(fsdp=8, choices={"weight_gather": r})).points)[
                "backward"
            ]["transient"]
        )
        for r in ("per_pass", "per_microbatch")
    ]
    assert transient[1] - transient[0] == pytest.approx((L - 1) * LAYER * (1 - 1 / 8) * 2)


def test_f32_parameters_are_cast_before_each_use():
    """MaxText: read 4 bytes, write 2, of the stored pieces, forward and backward."""
    dtypes = TrainDtypes(param="f32", master="none", grad="f32")
    work = train_work(dense(), step(fsdp=8, dtypes=dtypes))
    casts = work.where(lambda o: o.name == "cast.params" and o.body not in ("first", "last"))
    assert casts.hbm_bytes() == pytest.approx(2 * 6 * L * LAYER / 8)
    assert not train_work(dense(), step(fsdp=8)).where(lambda o: o.name == "cast.params").ops


def test_gathers_of_an_absent_axis_are_absent():
    work = train_work(dense(), step())
    assert not [o for o in work.ops if o.collective is not None]


def test_accumulation_reads_two_and_writes_one():
    work = train_work(dense(), step(microbatches=4.0, fsdp=2))
    summed = work.where(lambda o: o.name == "accumulate.gradients")
    assert summed.hbm_bytes() == pytest.approx(4 * 3 * 2 * PARAMS / 2)
    assert runs(work, "accumulate.gradients", "backward") == 4 * (L + 2)
    alone = train_work(dense(), step(fsdp=2))
    assert not alone.where(lambda o: o.name == "accumulate.gradients").ops


def test_a_tied_head_is_summed_between_its_two_stages():
    """A copy on the first and the last stage; its gradient goes there and back. Schedules that fold
    the stages have both ends on one device."""
    cfg = dense(tie_word_embeddings=True)
    work = train_work(cfg, step(stage=3, microbatches=6.0))
    tied = work.where(lambda o: o.name == "reduce.tied")
    assert tied.collective_bytes("permute") == pytest.approx(2 * V * D)
    folded = step(stage=3, microbatches=6.0, choices={"pipeline_schedule": "zb_v"})
    assert not train_work(cfg, folded).where(lambda o: o.name == "reduce.tied").ops
    points = dict(train_memory(cfg, step(stage=3, microbatches=6.0)).points)
    assert float(points["loss"]["params"]) == 2 * (LAYER + D + V * D)
    assert np.isclose(float(points["backward"]["params"]), 2 * (LAYER + V * D))
