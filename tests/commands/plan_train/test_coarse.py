"""`plan train --coarse`: the plan of the full search by fewer choices, with nothing beside it."""

import pytest

import shardwise as sw
from shardwise.errors import BadRequest

RUN = {"batch": "64seq", "seq": 2048}


def test_a_coarse_answer_names_the_plan_and_says_what_it_leaves_out():
    coarse = sw.plan_train("llama-3.2-1b", "v5e:2x2", coarse=True, **RUN)
    assert coarse.mesh == {"fsdp": 4}
    assert not coarse.close
    assert not coarse.runners_up
    assert coarse.remat != "offload"
    assert any("--coarse left out" in str(line) for line in coarse.warnings)
    swept = sw.plan_sweep(
        "llama-3.2-1b", on="v5e:2x2", batches="64seq", lengths="2048", coarse=True
    )
    assert swept.points[0].step_seconds == coarse.step_seconds
    assert any("--coarse" in str(line) for line in swept.warnings)


def test_a_coarse_search_of_a_choice_that_it_would_leave_out_tries_that():
    fixed = sw.plan_train("llama-3.2-1b", "v5e:2x2", coarse=True, remat="offload", **RUN)
    assert fixed.remat == "offload"


@pytest.mark.slow
def test_a_coarse_answer_to_a_deadline_is_on_the_same_chips():
    run = {"batch": "4Mi", "seq": 4096, "tokens": "1e11", "days": 12}
    coarse, fine = (
        sw.plan_train("llama-3.2-1b", "h100", coarse=one, **run) for one in (True, False)
    )
    assert (coarse.slice, coarse.mesh) == (fine.slice, fine.mesh)
    assert coarse.run == fine.run


def test_what_contradicts_it_is_refused():
    for words, said in (
        ({"compile": 1}, "coarse tries few plans and compile compiles the best ones; give one"),
        ({"exhaustive": True}, "coarse tries few plans, exhaustive prices all; give one"),
    ):
        with pytest.raises(BadRequest, match=said):
            sw.plan_train("llama-3.2-1b", "v5e:2x2", coarse=True, **words, **RUN)
