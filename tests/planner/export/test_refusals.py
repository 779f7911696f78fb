"""What a target cannot run is refused by the name of its field."""

import re
from dataclasses import replace

import pytest
from tests.planner.export.exporting import STORED_F32, a_plan

from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.planner.export import export_plan
from shardwise.plans import TrainDtypes
from shardwise.plans.software.torchtitan import nearest_flavor

REFUSALS = [
    ("maxtext", {"stage": 4, "fsdp": 4}, {"pipeline_schedule": "1f1b"}, "pipeline_schedule"),
    (
        "maxtext",
        {"stage": 4, "fsdp": 4},
        {"pipeline_schedule": "dualpipe", "virtual_stages": 2},
        "pipeline_schedule",
    ),
    (
        "maxtext",
        {"stage": 2, "fsdp": 8},
        {"pipeline_schedule": "gpipe", "layers_per_stage": (13, 11)},
        "layers_per_stage",
    ),
    ("maxtext", {"data": 2, "fsdp": 8}, {"zero": 2}, "zero 2"),
    ("maxtext", {"fsdp": 16}, {"remat": "none"}, "remat"),
    ("maxtext", {"fsdp": 16}, {"optimizer": "adafactor"}, "optimizer"),
    (
        "maxtext",
        {"fsdp": 16},
        {"dtypes": TrainDtypes(param="f32", master="bf16")},
        "dtypes.master",
    ),
    ("maxtext", {"fsdp": 16}, {"lora_rank": 8}, "lora_rank 8"),
    ("maxtext", {"fsdp": 16}, {"frozen": ("embedding",)}, "frozen"),
    ("maxtext", {"fsdp": 16}, {"weight_gather": "per_microbatch"}, "weight_gather"),
    ("maxtext", {"fsdp": 8, "context": 2}, {"storage_axes": ("fsdp",)}, "storage_axes"),
    ("torchtitan", {"data": 2, "fsdp": 8}, {}, "zero 1"),
    ("torchtitan", {"fsdp": 16}, {"remat": "offload"}, "remat"),
    ("torchtitan", {"fsdp": 16}, {"optimizer": "muon"}, "optimizer"),
    ("torchtitan", {"fsdp": 16}, {"offload_optimizer": True}, "offload_optimizer"),
    ("torchtitan", {"fsdp": 8, "context": 2}, {"context_method": "ring"}, "context_method"),
    (
        "torchtitan",
        {"stage": 4, "fsdp": 4},
        {"gradient_reduce": "per_step", "pipeline_schedule": "zb_h1"},
        "pipeline_schedule",
    ),
    ("torchtitan", {"stage": 4, "fsdp": 4}, {}, "gradient_reduce"),
    ("torchtitan", {"fsdp": 16}, {"gradient_reduce": "per_step"}, "gradient_reduce"),
    ("megatron", {"stage": 4, "fsdp": 4}, {"pipeline_schedule": "gpipe"}, "pipeline_schedule"),
    ("megatron", {"fsdp": 16}, {"remat": "matmul_outputs"}, "remat"),
    ("megatron", {"data": 2, "fsdp": 8}, {"zero": 2}, "zero"),
    ("megatron", {"fsdp": 16}, {"weight_gather": "per_microbatch"}, "weight_gather"),
    ("megatron", {"fsdp": 16}, {"dtypes": STORED_F32}, "dtypes"),
    ("jax", {"fsdp": 16}, {"remat": "offload"}, "remat"),
]


@pytest.mark.parametrize(("target", "mesh", "choices", "field"), REFUSALS)
def test_what_a_target_cannot_run_is_refused(target, mesh, choices, field):
    gpu = target in ("torchtitan", "megatron")
    values = {"microbatches": 8, "layers_per_stage": (24 // mesh.get("stage", 1),)} | choices
    values["layers_per_stage"] *= 1 if len(values["layers_per_stage"]) > 1 else mesh.get("stage", 1)
    plan, cfg, piece = a_plan("dense", "2*h100:8" if gpu else "v5e:4x4", mesh, **values)
    with pytest.raises(BadRequest) as refused:
        export_plan(plan, cfg, piece, target)
    assert re.search(rf"^(shardwise's export to )?{target} cannot express", str(refused.value))
    assert re.search(rf"( |^  ){field}\b.*; \w", str(refused.value), re.MULTILINE)


@pytest.mark.parametrize("target", ["torchtitan", "megatron"])
def test_torch_frameworks_are_refused_on_tpus(target):
    with pytest.raises(BadRequest, match=r"slice .*it runs on GPUs"):
        export_plan(*a_plan("dense", "v5e:4x4", {"fsdp": 16}), target)


def test_torchtitan_names_the_nearest_model_and_what_differs():
    cfg = replace(load_model("llama-3-8b"), vocabulary=32_000)
    said = nearest_flavor(cfg)
    assert said.startswith(
        "the nearest, 8B of llama3, has vocabulary 128,256 where this has 32,000"
    )
    assert "layers" not in said
