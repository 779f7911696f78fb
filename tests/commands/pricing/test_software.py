"""--for: a plan is for a program, priced by its stack, and what it cannot run is said at once."""

import pytest
from tests.planner.export.exporting import a_plan
from tests.tiers import spread

import shardwise as sw
from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest
from shardwise.hardware import load_chip
from shardwise.planner.export import EXPORTERS, export_plan
from shardwise.plans.software import SOFTWARE, candidates_of_plan, made_elsewhere
from shardwise.plans.train import TrainPlan

JOB = {"batch": "64seq", "seq": 4096}


@pytest.mark.parametrize(
    ("on", "usual", "stack"),
    spread(
        [("2*h100:8", "megatron", "megatron"), ("v5e:4x4", "maxtext", "xla")], slow=1, rows=True
    ),
)
def test_the_usual_program_of_a_chip_runs_the_default_plan(on, usual, stack):
    found = sw.plan_train("llama-3-8b", on, **JOB)
    plan = found.best.plan
    assert (plan.software, plan.stack) == (usual, stack)
    assert found.result["runs_in"] == SOFTWARE[usual].title
    assert SOFTWARE[usual].title in str(found)
    assert not SOFTWARE[usual].obstacles(candidates_of_plan(plan, found.best.cfg, found.best.piece))
    export_plan(plan, found.best.cfg, found.best.piece, usual)


@pytest.mark.parametrize("chip", ["gaudi2", "gaudi3"])
def test_jax_reaches_no_chip_without_a_backend(chip):
    assert SOFTWARE["jax"].reaches(load_chip("cpu")), "another chip of the same vendor"
    with pytest.raises(BadRequest, match="it runs on TPUs and GPUs"):
        sw.plan_train("llama-3.2-1b", f"{chip}:1", batch="8seq", seq=2048)
    assert sw.plan_train("llama-3.2-1b", f"{chip}:1", batch="8seq", seq=2048, software="any").mfu


@pytest.mark.parametrize("program", spread(SOFTWARE, quick=[[*SOFTWARE].index("megatron")], slow=2))
def test_every_plan_that_a_search_shows_can_be_run_by_its_program(program):
    planning = plan_training(
        "qwen3-30b-a3b", "2*h100:8", top=5, choices=TrainChoices(software=program), **JOB
    )
    for answer in (planning.best, *planning.runners_up, *planning.strategies):
        runs = candidates_of_plan(answer.plan, answer.cfg, answer.piece)
        assert SOFTWARE[program].obstacles(runs) == []
        if EXPORTERS[program].runner(answer.piece) is not None:
            export_plan(answer.plan, answer.cfg, answer.piece, program)


@pytest.mark.slow
def test_a_faster_plan_outside_the_program_is_said():
    found = sw.plan_train("llama-3-8b", "v5p:4x4x8", batch="4Mi", seq=8192)
    other = found.result["faster_outside"]
    assert other["times_slower"] < 0.99
    free = sw.plan_train("llama-3-8b", "v5p:4x4x8", batch="4Mi", seq=8192, software="any")
    assert free.result["faster_outside"] is None
    assert free.result["runs_in"] == ""


def test_a_program_that_cannot_run_what_is_fixed_says_all_of_it():
    with pytest.raises(BadRequest) as refused:
        sw.plan_train("gemma-2-9b", "v5e:4x4", software="megatron", **JOB)
    said = str(refused.value)
    assert "slice v5e:4x4: it runs on GPUs" in said
    assert "missing: " in said
    with pytest.raises(BadRequest, match="remat none: it supports matmul_outputs, block, offload"):
        sw.plan_train("llama-3-8b", "v5e:4x4", software="maxtext", remat="none", **JOB)


@pytest.mark.slow
def test_a_stack_goes_with_no_program():
    best = sw.plan_train(
        "llama-3-8b", "2*h100:8", software="any", sets={"stack": "fsdp"}, **JOB
    ).best.plan
    assert (best.software, best.stack) == ("any", "fsdp")
    with pytest.raises(BadRequest, match="sets=stack=fsdp needs software any"):
        sw.plan_train("llama-3-8b", "2*h100:8", sets={"stack": "fsdp"}, **JOB)


def test_a_plan_for_another_program_is_told_where_it_would_run():
    plan, _, _ = a_plan("dense", "v5e:4x4", {"fsdp": 16}, software="maxtext")
    assert isinstance(plan, TrainPlan)
    assert "the plan is for MaxText" in made_elsewhere(plan)[0]
    own, _, _ = a_plan("dense", "v5e:4x4", {"fsdp": 16}, software="jax")
    assert made_elsewhere(own) == []
