"""An export parses back into the very plan, for any plan that a target can run; others are refused
by the name of the field."""

import re
from dataclasses import fields

import pytest
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.planner.export.exporting import MIXED, MODELS, STORED_F32, a_plan, plans

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.export import EXPORTERS, export_plan, parse_export, target_for
from shardwise.planner.export.trainer import TARGETS as TRAINERS
from shardwise.plans import TrainDtypes, TrainPlan, model_hash
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.optimizers import OPTIMIZERS
from shardwise.plans.software import candidates_of_plan
from shardwise.plans.stacks import STACKS
from shardwise.plans.train import PLACINGS, STORAGE_AXES

ABOUT = {
    "placement": PLACINGS,
    "stack": STACKS,
    "constants": ["vendor", "book"],
    "expert_imbalance": [1.0, 1.5],
}
MAXTEXT = ABOUT | {
    "schedules": ["gpipe"],
    "models": ["dense"],
    "zero": [0, 1],
    "sequence_parallel": [True, False],
    "remat": ["matmul_outputs", "block", "offload"],
    "remat_kinds": [{}, {"attention": "keep"}, {"block_input": "offload", "mlp_out": "offload"}],
    "attention_kernel": ["flash", "scores"],
    "context_method": CONTEXT_METHODS,
    "optimizer": ["adam", "muon", "sgd"],
    "offload_optimizer": [True, False],
    "mtp_layers": [0, 1],
    "logit_chunks": [1, 4],
    "dtypes": [MIXED, STORED_F32, TrainDtypes(compute="fp8"), TrainDtypes(compute="int8")],
    "packed_lengths": [(), (128, 128)],
}
MOE = MAXTEXT | {
    "models": ["moe"],
    "schedules": ["gpipe"],
    "expert_dispatch": ["dense", "ragged"],
}
TORCHTITAN = ABOUT | {
    "schedules": ["gpipe", "1f1b", "interleaved", "zb_v"],
    "uneven": True,
    "zero": [0],
    "sequence_parallel": [True, False],
    "weight_gather": ["per_pass", "per_microbatch"],
    "gradient_reduce": ["per_microbatch", "per_step"],
    "remat": ["none", "block"],
    "expert_dispatch": ["ragged"],
    "expert_over_tensor": [True],
    "logit_chunks": [1, 4],
    "dtypes": [TrainDtypes(grad="f32"), STORED_F32],
}
MEGATRON = ABOUT | {
    "schedules": ["1f1b", "interleaved"],
    "uneven": True,
    "zero": [0, 1],
    "sequence_parallel": [True, False],
    "remat": ["none", "block"],
    "attention_kernel": ["flash", "scores"],
    "context_method": CONTEXT_METHODS,
    "optimizer": ["adam", "muon", "sgd"],
    "offload_optimizer": [True, False],
    "mtp_layers": [0, 1],
    "expert_dispatch": ["dense", "ragged"],
    "expert_over_tensor": [True, False],
    "dtypes": [
        MIXED,
        TrainDtypes(grad="f32"),
        TrainDtypes(compute="fp8"),
        TrainDtypes(param="fp8", compute="fp8"),
        TrainDtypes(compute="mxfp8", grad="f32"),
        TrainDtypes(param="f32", compute="f32", grad="f32", master="none"),
        TrainDtypes(moments="bf16"),
    ],
}
EACH = "per_microbatch"
LOADED = TrainDtypes(master="none", moments="bf16")
TRAINER = ABOUT | {
    "zero": [0, 1],
    "sequence_parallel": [True, False],
    "weight_gather": ["per_pass", "per_microbatch"],
    "gradient_reduce": ["per_microbatch", "per_step"],
    "remat": ["none", "block", "offload"],
    "attention_kernel": ["flash", "fa2", "fa3", "scores"],
    "expert_dispatch": ["ragged"],
    "optimizer": ["adam", "adam8bit", "adafactor", "muon", "sgd"],
    "offload_optimizer": [True, False],
    "lora_rank": [0, 8],
    "library": ["plain", "transformers"],
    "fused_loss": [None, True],
    "dtypes": [MIXED, STORED_F32, LOADED],
}
JAX = MAXTEXT | {
    "models": ["dense", "moe"],
    "schedules": ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"],
    "zero": [0, 1, 2],
    "storage_axes": [STORAGE_AXES, ("fsdp",), ("fsdp", "expert")],
    "remat": ["none", "matmul_outputs", "block"],
    "optimizer": OPTIMIZERS,
    "lora_rank": [0, 8],
    "frozen": [(), ("embedding",)],
    "dtypes": [MIXED, STORED_F32, TrainDtypes(compute="fp8")],
}
ACCEPTED = {
    "maxtext": (plans(tpu=True, **MAXTEXT), plans(tpu=True, **MOE), plans(tpu=False, **MAXTEXT)),
    "torchtitan": (plans(tpu=False, **TORCHTITAN),),
    "megatron": (
        plans(tpu=False, **MEGATRON),
        plans(tpu=False, **MEGATRON | {"zero": [0, 1, 2], "storage_axes": [("fsdp",)]}),
    ),
    "jax": (plans(tpu=True, **JAX), plans(tpu=False, **JAX)),
    "xpk": (plans(tpu=True, **MAXTEXT), plans(tpu=True, **MOE)),
    "skypilot": (plans(tpu=False, **MEGATRON),),
    "slurm": (plans(tpu=False, **MEGATRON), plans(tpu=False, **TORCHTITAN)),
    **{
        target: (
            plans(tpu=False, axes=("data", "fsdp"), **TRAINER),
            plans(tpu=False, axes=("data",), **TRAINER | {"zero": [2], "gradient_reduce": [EACH]}),
        )
        for target in TRAINERS
    },
}


def runs_as_it_is(target: str, plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> bool:
    """Whether the drawn choices, each of which the target takes, go together there."""
    runner = EXPORTERS[target].runner(piece)
    if EXPORTERS[target].obstacles(plan, piece):
        return False
    if EXPORTERS[target].whole:
        return bool(target_for(plan, cfg, piece))
    return runner is None or not runner.obstacles(candidates_of_plan(plan, cfg, piece))


@pytest.mark.parametrize("target", EXPORTERS)
@on_drawn(150, data=st.data())
def test_what_a_target_can_run_parses_back(target, data):
    plan, cfg, piece = data.draw(st.one_of(*ACCEPTED[target]))
    if not runs_as_it_is(target, plan, cfg, piece):
        return
    text = export_plan(plan, cfg, piece, target)
    assert parse_export(text, target) == plan
    copied = {"replica", "data"} & set(plan.mesh)
    if not copied or (copied == {"data"} and plan.slices == 1):
        assert "# shardwise: mesh:" not in text  # the flags alone say the mesh
    assert "# shardwise: microbatches" not in text
    assert "# shardwise: global_batch_sequences" not in text
    assert "# shardwise: sequence_length" not in text


ANYTHING = {
    **JAX,
    "remat": REMAT_POLICIES,
    "weight_gather": ["per_pass", "per_microbatch"],
    "expert_dispatch": ["dense", "ragged"],
    "expert_over_tensor": [True, False],
    "uneven": True,
    "dtypes": [MIXED, STORED_F32, TrainDtypes(compute="nvfp4"), TrainDtypes(moments="bf16")],
}
FIELDS = [f.name for f in fields(TrainPlan)]


@pytest.mark.parametrize("target", EXPORTERS)
@on_drawn(150, data=st.data())
def test_any_plan_parses_back_or_is_refused_by_field(target, data):
    tpu = data.draw(st.booleans())
    plan, cfg, piece = data.draw(plans(tpu=tpu, **ANYTHING))
    refusal, text = "", ""
    try:
        text = export_plan(plan, cfg, piece, target)
    except BadRequest as error:
        refusal = str(error)
    runner = EXPORTERS[target].runner(piece)
    if runner is not None and runner.name == target:  # no launcher, which has slices of its own
        # The limits that a search keeps are what an export refuses, and nothing else.
        assert bool(refusal) == bool(runner.obstacles(candidates_of_plan(plan, cfg, piece)))
    if refusal:
        assert any(re.search(rf"(express |^  ){f}\b", refusal, re.M) for f in FIELDS), refusal
    else:
        assert parse_export(text, target) == plan


def test_degree_one_is_kept_where_it_was_written():
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"data": 1, "fsdp": 16, "tensor": 1})
    for target in ("maxtext", "jax", "xpk", "skypilot"):
        assert parse_export(export_plan(plan, cfg, piece, target), target).mesh == plan.mesh


def test_a_replica_is_told_from_data_by_a_note_until_the_flags_change():
    plan, cfg, piece = a_plan("dense", "2*h100:8", {"replica": 2, "data": 8}, zero=0)
    text = export_plan(plan, cfg, piece, "megatron")
    assert '# shardwise: mesh: {"reads": {"data": 16}, "means": {"replica": 2, "data": 8}}' in text
    assert parse_export(text, "megatron") == plan
    edited = text.replace("--nnodes 2", "--nnodes 4").replace("-batch-size 32", "-batch-size 16")
    assert parse_export(edited, "megatron").mesh == {"data": 32}


@pytest.mark.parametrize("target", EXPORTERS)
def test_an_unknown_target_or_another_model_is_refused(target):
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"fsdp": 16})
    with pytest.raises(BadRequest, match="unknown export target 'maxtex'; did you mean 'maxtext'"):
        export_plan(plan, cfg, piece, "maxtex")
    other = a_plan("moe", "v5e:4x4", {"fsdp": 16})[1]
    with pytest.raises(BadRequest, match="was made for another 'dense'"):
        export_plan(plan, other, piece, target)


@pytest.mark.parametrize("target", EXPORTERS)
@pytest.mark.parametrize("text", ["", "nonsense '", "{", "a: [1", "# shardwise: zero: 1"])
def test_text_that_is_no_export_is_refused(target, text):
    with pytest.raises(BadRequest, match=target):
        parse_export(text, target)


def test_a_broken_note_is_refused():
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"fsdp": 16})
    text = export_plan(plan, cfg, piece, "maxtext")
    broken = text.replace('# shardwise: model: "dense"', "# shardwise: model: [")
    with pytest.raises(BadRequest, match="is not a note; write '# shardwise: FIELD: VALUE'"):
        parse_export(broken, "maxtext")
    unknown = text.replace("# shardwise: model:", "# shardwise: modle:")
    with pytest.raises(BadRequest, match="unknown key 'modle'"):
        parse_export(unknown, "maxtext")


def test_every_model_of_the_tests_is_distinct():
    assert model_hash(MODELS["dense"]) != model_hash(MODELS["moe"])
