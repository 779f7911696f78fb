"""Two plans of one job, choice by choice."""

from dataclasses import replace

import pytest
from tests.planner.search.test_train_search import request

from shardwise.errors import BadRequest
from shardwise.evidence.compare_plans import compare_plans
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.training import plan_train


@pytest.mark.slow
def test_every_choice_that_differs_is_listed_with_its_effect():
    asked = request(on="v5e:4x4", sequences=32, pins={"stage": 2}, remat=("block",))
    best = plan_train(asked, top=0).best.plan
    theirs = replace(best, remat="none", microbatches=2 * best.microbatches)
    rows = {row.field: row for row in compare_plans(best, theirs, asked.cfg, asked.piece)}
    assert {"remat", "microbatches"} <= set(rows)
    assert (rows["remat"].ours, rows["remat"].theirs) == ("block", "none")
    base = evaluate_train(theirs, asked.cfg, asked.piece).step_seconds.expected
    alone = evaluate_train(replace(theirs, remat=best.remat), asked.cfg, asked.piece)
    assert rows["remat"].effect == pytest.approx(alone.step_seconds.expected / base)
    assert compare_plans(best, best, asked.cfg, asked.piece) == ()


def test_plans_of_different_jobs_are_refused():
    asked = request(on="v5e:4x4", sequences=32, remat=("block",))
    best = plan_train(asked, top=0).best.plan
    other = replace(best, global_batch_sequences=2 * best.global_batch_sequences)
    with pytest.raises(BadRequest, match="global_batch_sequences"):
        compare_plans(best, other, asked.cfg, asked.piece)
