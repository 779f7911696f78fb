"""What an answer says a plan "runs in" is what that program's exporter takes, and for ours the
trainer (tests/runtime/test_trainer_row.py)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from tests.planner.export.exporting import MODELS, a_plan, plans
from tests.tiers import spread

import shardwise as sw
from drawn import on_drawn
from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest
from shardwise.planner.export import EXPORTERS, export_plan, refusal, target_for
from shardwise.plans import TrainDtypes, save_plan
from shardwise.plans.software import JAX, SOFTWARE
from shardwise.results.train import runs_in

DTYPES = ("bf16", "f32", "f16", "f64", "fp8", "int8", "int4")
CHOICES = {
    "remat": ["none", "matmul_outputs", "block", "offload"],
    "zero": [0, 1, 2],
    "optimizer": ["adam", "adam8bit", "adafactor", "muon", "sgd"],
    "context_method": ["all_gather", "ring", "ulysses"],
    "expert_dispatch": ["dense", "ragged"],
    "expert_over_tensor": [False, True],
    "sequence_parallel": [False, True],
    "weight_gather": ["per_pass", "per_microbatch", "per_step"],
    "gradient_reduce": ["per_microbatch"],
    "logit_chunks": [1, 1, 1, 2],
    "lora_rank": [0, 0, 0, 8],
    "frozen": [(), (), ("embedding",)],
    "mtp_layers": [0, 0, 1],
    "offload_optimizer": [False, False, True],
    "remat_kinds": [{}, {}, {"mlp_in": "keep"}, {"activation": "keep"}],
    "storage_axes": [("fsdp", "expert", "context"), ("fsdp",)],
    "schedules": ["1f1b", "gpipe", "interleaved", "zb_h1"],
    "uneven": True,
}
LOADED = TrainDtypes(master="none", moments="bf16")
PROGRAMS = st.sampled_from(sorted(SOFTWARE))


@st.composite
def dtypes(draw):
    one = st.sampled_from(DTYPES)
    values = [draw(st.one_of(st.just("f32"), one)) for _ in range(4)]
    param, compute, grad, moments = values
    master = draw(st.sampled_from(("none", "f32", *DTYPES)))
    return TrainDtypes(param=param, compute=compute, grad=grad, master=master, moments=moments)


def drawn_plan(tpu, choices):
    return st.tuples(plans(tpu, **choices), st.one_of(st.just(TrainDtypes()), dtypes()))


@on_drawn(240, st.data())
def test_a_program_that_is_named_writes_the_plan(data):
    program = data.draw(PROGRAMS)
    (plan, cfg, piece), kinds = data.draw(drawn_plan(data.draw(st.booleans()), CHOICES))
    plan = replace(plan, dtypes=kinds, software=program)
    why = refusal(plan, cfg, piece, program)
    assert target_for(plan, cfg, piece) == ("" if why else program)
    if not why:
        export_plan(plan, cfg, piece, program)
    elif program != JAX.name:
        with pytest.raises(BadRequest):
            export_plan(plan, cfg, piece, program)


LAUNCHED = {"xpk": lambda piece: "maxtext", "skypilot": lambda piece: _MINE[piece.chip.vendor]}
_MINE = {"google": "maxtext", "nvidia": "megatron"}


@on_drawn(160, st.data())
def test_show_and_export_say_the_same_of_every_target(data):
    """What `plan show` says a plan runs in is what its export takes; a launcher takes no plan that
    the program which it starts refuses, and Slurm every one that some program takes."""
    (plan, cfg, piece), kinds = data.draw(drawn_plan(data.draw(st.booleans()), CHOICES))
    plan = replace(plan, dtypes=data.draw(st.sampled_from([kinds, TrainDtypes(), LOADED])))
    takes = {target: not refusal(plan, cfg, piece, target) for target in EXPORTERS}
    for program in sorted(SOFTWARE):
        named = replace(plan, software=program)
        shown = runs_in(SimpleNamespace(plan=named, cfg=cfg, piece=piece))
        assert shown == (SOFTWARE[program].title if takes[program] else "")
    for target, program in LAUNCHED.items():
        assert takes[program(piece)] or not takes[target]
    able = any(takes[name] for name in (*SOFTWARE, "trl"))
    gpus = piece.chip.vendor != "google"
    assert takes["slurm"] == (gpus and able)
    for target in ("trl", "axolotl", "accelerate", "deepspeed"):
        assert takes["trl"] or not takes[target]


def test_a_page_of_adapters_names_the_export_that_takes_them(tmp_path):
    file = tmp_path / "p.yaml"
    asked = {"batch": "16seq", "seq": 1024, "lora": 16, "pins": {"stage": 1}}
    found = sw.plan_train("qwen3-0.6b", "h100:2", remat="block", **asked)
    save_plan(found.best.plan, file)
    assert "PEFT and what builds on it (export --to trl)" in str(found)
    assert "--lora_target_modules all-linear" in sw.export(file, to="trl").text
    shown = sw.plan_show(file, sets={"remat": "matmul_outputs"})
    assert "but no export can write this plan" in str(shown)
    save_plan(replace(found.best.plan, remat="matmul_outputs"), file)
    with pytest.raises(BadRequest, match="trl cannot express remat matmul_outputs"):
        sw.export(file, to="trl")


def test_what_is_not_written_yet_is_not_what_a_program_cannot_run():
    lora = {"lora_rank": 8, "dtypes": LOADED, "zero": 0, "gradient_reduce": "per_microbatch"}
    plan, cfg, piece = a_plan("dense", "h100:8", {"fsdp": 8}, **lora)
    said = refusal(plan, cfg, piece, "torchtitan")
    assert "lora_rank 8: its export writes 0" in said
    assert "(the program may support it; our export does not yet)" in said
    said = refusal(replace(plan, lora_rank=0, optimizer="adafactor"), cfg, piece, "torchtitan")
    assert "optimizer adafactor: it supports adam" in said
    assert "our export does not yet" not in said


@on_drawn(200, dtypes())
def test_the_trainer_takes_the_dtypes_that_its_row_has_words_for(kinds):
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"fsdp": 16}, dtypes=kinds)
    names = {kinds.param, kinds.compute, kinds.grad}
    known = names <= {"bf16", "f32", "f16", "f64"}
    takes = refusal(plan, cfg, piece, JAX.name) == ""
    assert takes <= known
    if takes:
        export_plan(plan, cfg, piece, JAX.name)


@pytest.mark.parametrize(
    "words",
    spread(
        [{"dtype": "int4"}, {"grad_dtype": "fp8"}, {"param_dtype": "int4"}, {"moments": "int4"}],
        slow=1,
    ),
)
def test_a_dtype_that_nothing_computes_in_runs_in_nothing(words):
    """The trainer was named, which refuses it."""
    found = sw.plan_train("qwen3-0.6b", "v5e:2x2", batch="4seq", seq=256, **words)
    assert found.result["runs_in"] == ""
    assert "no program" in str(found)
    with pytest.raises(BadRequest, match="shardwise cannot write this plan for JAX"):
        sw.plan_train("qwen3-0.6b", "v5e:2x2", batch="4seq", seq=256, software="jax", **words)


@pytest.mark.slow
def test_a_plan_that_its_program_refuses_is_told_so(tmp_path):
    file = tmp_path / "p.yaml"
    found = sw.plan_train("qwen3-0.6b", "v5e:2x2", batch="4seq", seq=256)
    save_plan(found.best.plan, file)
    assert sw.plan_show(file).result["runs_in"] == "MaxText"
    shown = sw.plan_show(file, sets={"optimizer": "adafactor"})
    assert load_plan(file).software == "maxtext"
    assert shown.result["runs_in"] == ""
    assert "runs in  nothing: the plan is for MaxText, which refuses it" in str(shown)
    (note,) = [w for w in shown.warnings if "which does not run it" in w]
    assert "maxtext cannot express optimizer adafactor: it supports adam, muon, sgd" in note


def test_what_megatron_is_not_given_is_no_word_about_megatron():
    with pytest.raises(BadRequest) as refused:
        sw.plan_train("nemotron-h-56b", "h100:64", batch="64seq", seq=4096, software="megatron")
    said = str(refused.value)
    assert said.startswith("shardwise cannot write this plan for Megatron-LM:")
    assert "its flags in our export do not describe every part of the model" in said
    assert "whatever the plan" not in said


def test_a_plan_for_no_program_goes_to_one_that_writes_it():
    for name in MODELS:
        plan, cfg, piece = a_plan(name, "v5e:4x4", {"fsdp": 16}, expert_dispatch="ragged")
        export_plan(plan, cfg, piece, target_for(plan, cfg, piece))
