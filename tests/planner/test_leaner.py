"""What makes a plan fit that does not, as options that do it: here as keywords of Python."""

import re
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import NoFeasiblePlan
from shardwise.units import format_seconds

JOB: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "on": "h100:1",
    "batch": "1seq",
    "seq": 2048,
    "remat": "block",
}


def refused(**words):
    with pytest.raises(NoFeasiblePlan) as error:
        sw.plan_train(**JOB, offload="none", **words)
    return str(error.value)


def test_full_fine_tuning_of_8b_on_one_gpu_names_what_fits():
    said = refused(software="any")
    for options in ("optimizer adam8bit (", "offload optimizer (", "lora=16 ("):
        assert options in said
    assert "a step over the host link" in said
    assert "master none" not in said  # it is not needed
    assert said.endswith("or use h100:2 (2 chips) or more")
    assert "it fits with" in said


def test_what_is_named_fits_with_the_memory_that_is_named():
    said = refused(software="any")
    named: tuple[tuple[dict[str, Any], str], ...] = (
        ({"optimizer": "adam8bit"}, "optimizer adam8bit"),
        ({"offload": "optimizer"}, "offload optimizer"),
    )
    for words, options in named:
        (gib,) = re.findall(rf"{options} \(([\d.]+) GiB", said)
        found = sw.plan_train(**JOB, software="any", **words)
        assert found.result["peak_bytes_per_chip"] / 2**30 == pytest.approx(float(gib), rel=0.01)


def test_what_does_not_fit_is_planned_with_the_optimizer_in_host_memory():
    """Of a slice that is named; the answer says what that costs, and what fits without."""
    found = sw.plan_train(**JOB, software="megatron")
    plan = found.best.plan
    assert plan.offload_optimizer
    assert plan.software == "megatron"
    (said,) = [line for line in found.warnings if "is in host memory" in line]
    seconds = found.best.time_parts.optimizer
    assert f"updates take {format_seconds(seconds)} of a step" in said
    assert seconds > 0.5 * found.best.step_seconds.expected
    assert "it also fits with --master none --optimizer adam8bit --for any (" in said
    assert "--offload none leaves this out" in said


def test_more_chips_come_before_host_memory_where_no_slice_is_named():
    found = sw.plan_train(**(JOB | {"on": "h100"}), software="megatron")
    assert found.best.piece.chips > 1
    assert not found.best.plan.offload_optimizer
    assert not [line for line in found.warnings if "is in host memory" in line]


def test_two_changes_where_one_is_not_enough():
    """Megatron-LM sums gradients in f32, and runs no adam8bit."""
    said = refused(software="megatron")
    assert "master none optimizer adam8bit software any (" in said


def test_a_program_that_does_not_run_it_is_left():
    assert "offload optimizer software any (" in refused(software="torchtitan")


def test_quantised_weights_where_16_bits_do_not_fit():
    with pytest.raises(NoFeasiblePlan) as error:
        sw.plan_train("llama-3-70b", "h100:1", batch="1seq", seq=512, remat="block", lora=16)
    assert "it fits with quantize nf4 (" in str(error.value)


def test_many_chips_get_more_of_them():
    with pytest.raises(NoFeasiblePlan) as error:
        sw.plan_train(
            *("llama-3.1-405b", "h100:16"), batch="16seq", seq=2048, remat="block", offload="none"
        )
    assert "it fits with" not in str(error.value)
