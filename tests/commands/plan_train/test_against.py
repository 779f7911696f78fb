"""A plan beside the best one of its job: priced alike, or refused with the flags that would do."""

from dataclasses import replace

import pytest
from tests.planner.search.test_train_search import request

from shardwise.commands.plan_train.against import against_plan, published_plan, set_against
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.training import plan_train


@pytest.fixture(scope="module")
def planning():
    return plan_train(request(on="2*h100:4", sequences=32, remat=("block",)), top=1)


@pytest.mark.slow
def test_a_plan_of_the_same_job_is_priced_beside_the_best(planning):
    best = planning.best
    theirs = replace(best.plan, remat="block" if best.plan.remat != "block" else "none")
    found = set_against(planning, theirs, "mine")
    alone = evaluate_train(theirs, best.cfg, best.piece).step_seconds.expected
    assert found.times_slower == pytest.approx(alone / best.step_seconds.expected)
    assert [row.field for row in found.differences] == ["remat"]
    assert found.differences[0].effect == pytest.approx(1 / found.times_slower)
    assert found.notes == ()


def test_it_is_moved_to_another_chip_of_the_same_slice_and_says_so(planning):
    best = planning.best.plan
    theirs = replace(best, slice=str(parse_slice("2*h800:4")), stack="megatron", constants="book")
    found = set_against(planning, theirs, "mine")
    assert found.differences == ()
    assert found.times_slower == pytest.approx(1)
    said = " ".join(found.notes)
    assert "2*h800:4" in said
    assert "megatron" in said
    assert "book" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slice": "4*h100:4"}, "--on '4[*]h100:4'"),
        ({"slice": "h100:8"}, "--on h100:8 "),
        ({"global_batch_sequences": 64}, "--batch 64seq"),
        ({"sequence_length": 512}, "--seq 512"),
        ({"model_hash": "other", "model": "llama-3-8b"}, "--model llama-3-8b"),
    ],
)
def test_another_job_is_refused_with_the_flags_that_plan_it(planning, changes, said):
    theirs = replace(planning.best.plan, **changes)
    with pytest.raises(BadRequest, match=said):
        set_against(planning, theirs, "mine")


def test_the_document_holds_every_difference(planning):
    theirs = replace(planning.best.plan, dtypes=replace(planning.best.plan.dtypes, moments="bf16"))
    doc = against_plan(set_against(planning, theirs, "mine"))
    (row,) = doc.differences
    assert row.field == "dtypes"
    assert (row.ours.moments, row.theirs.moments) == ("f32", "bf16")
    assert doc.why


def test_published_plans_are_found_by_name():
    assert published_plan("audit:deepseek-v3-2048").pipeline_schedule == "dualpipe"
    with pytest.raises(BadRequest, match="deepseek-v3-2048"):
        published_plan("audit:deepseek-v3-2047")
