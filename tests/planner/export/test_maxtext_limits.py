"""What MaxText refuses is an obstacle of its row, and what is next to it is none."""

from dataclasses import replace

import pytest
from tests.planner.export.flags import maxtext_flags

from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import export_plan, parse_export
from shardwise.plans import TrainDtypes, TrainPlan, model_hash
from shardwise.plans.software import SOFTWARE, candidates_of_plan
from shardwise.plans.software.maxtext_models import named_model

FULL, LATENT, BIASED = "llama-3-8b", "deepseek-v2-lite", "qwen2.5-7b"
HALVES = (2048, 2048)
FP8 = TrainDtypes(param="f32", compute="fp8", grad="f32", master="none")


def a_plan(model: str, on: str, mesh: dict[str, int], **choices):
    """(plan, model, slice), which suit MaxText but for what is given."""
    cfg, piece = load_model(model), parse_slice(on)
    values = {
        "model": model,
        "model_hash": model_hash(cfg),
        "slice": str(piece),
        "slices": piece.count,
        "box": piece.shape,
        "mesh": mesh,
        "global_batch_sequences": 128,
        "sequence_length": 4096,
        "microbatches": 1,
        "layers_per_stage": (cfg.layers,),
        "zero": 0,
        "software": "maxtext",
        "dtypes": TrainDtypes(param="f32", grad="f32", master="none"),
        "expert_dispatch": "ragged" if cfg.has_experts else "dense",
    }
    return TrainPlan(**(values | choices)), cfg, piece


def obstacles(model: str, on: str, mesh: dict[str, int], **choices) -> dict[str, str]:
    """The rules that a plan breaks, by field."""
    plan, cfg, piece = a_plan(model, on, mesh, **choices)
    found: dict[str, str] = {}
    for obstacle in SOFTWARE["maxtext"].obstacles(candidates_of_plan(plan, cfg, piece)):
        found[obstacle.field] = found.get(obstacle.field, "") + obstacle.rule
    return found


BY = {"ring": {"context_method": "ring"}, "ulysses": {"context_method": "ulysses"}}
CUT = {"fsdp": 8, "context": 2}
REFUSED = [
    (FULL, "v5e:4x4", {"fsdp": 2, "context": 8}, BY["ring"] | {"sequence_length": 4000}, "mesh",
     "context squared", BY["ring"]),
    (FULL, "v5p:4x4x12", {"fsdp": 64, "context": 3}, {"sequence_length": 4608}, "mesh",
     "context is even", None),
    ("qwen2.5-0.5b", "v5e:16x16", {"fsdp": 256}, {"global_batch_sequences": 256}, "mesh",
     "d_model and the ranks", None),
    ("qwen3-0.6b", "v5p:4x4x12", {"fsdp": 64, "tensor": 3}, {"global_batch_sequences": 192},
     "mesh", "d_ff", None),
    (FULL, "v5e:4x4", {"context": 16}, {"sequence_length": 4080}, "mesh", "2 x context", {}),
    (FULL, "v5e:4x4", {"tensor": 16}, {}, "mesh", "key-value heads", None),
    (FULL, "v5e:4x4", {"context": 4, "tensor": 4}, BY["ulysses"], "mesh", "key-value heads",
     BY["ring"]),
    (FULL, "2*v5e:4x4", {"fsdp": 16, "context": 2}, BY["ulysses"] | {"slices": 2}, None, "", None),
    (FULL, "2*v5e:4x4", {"context": 2, "tensor": 16}, BY["ulysses"], "mesh", "inside a slice",
     None),
    (FULL, "2*h100:8", CUT, BY["ulysses"], "context_method", "only on TPUs", BY["ring"]),
    (LATENT, "v5e:4x4", CUT, BY["ulysses"], "context_method", "latent", BY["ring"]),
    (LATENT, "v5e:4x4", CUT, BY["ring"] | {"packed_lengths": HALVES}, "context_method",
     "packed", {"packed_lengths": HALVES}),
    (FULL, "2*h100:8", CUT, {"packed_lengths": HALVES}, "context_method", "need ring",
     BY["ring"] | {"packed_lengths": HALVES}),
    (FULL, "v5e:4x4", CUT, BY["ring"] | {"attention_kernel": "scores"}, "attention_kernel",
     "flash kernel", {"attention_kernel": "scores"}),
    (FULL, "v5e:4x4", CUT, BY["ring"] | {"mtp_layers": 1}, "mtp_layers", "several tokens",
     {"mtp_layers": 1}),
    (FULL, "v5e:4x4", {"fsdp": 16}, {"dtypes": FP8, "microbatches": 2}, "dtypes.compute",
     "accumulate", {"dtypes": FP8}),
    (FULL, "v5e:4x4", {"fsdp": 16}, {"logit_chunks": 3}, "logit_chunks", "tiles",
     {"logit_chunks": 4}),
    (BIASED, "v5e:4x4", {"fsdp": 16}, {"optimizer": "muon"}, "optimizer", "Muon", {}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "on", "mesh", "choices", "field", "rule", "instead"), REFUSED)
def test_maxtext_refuses(model, on, mesh, choices, field, rule, instead):
    found = obstacles(model, on, mesh, **choices)
    assert set(found) == ({field} if field else set())
    assert rule in found.get(field, "")
    if instead is not None:
        assert obstacles(model, on, mesh, **instead) == {}


def test_windows_and_sinks_go_over_context_by_gathering_keys_alone():
    for method, wanted in (("ring", True), ("ulysses", True), ("all_gather", False)):
        found = obstacles("gpt-oss-20b", "v5e:4x4", CUT, context_method=method)
        assert ("context_method" in found) == wanted
    assert "context_method" in obstacles("gpt-oss-20b", "2*h100:8", CUT)


@pytest.mark.parametrize(
    ("model", "name"), [("gpt-oss-20b", "gpt-oss-20b"), ("olmo-3-7b", "olmo3-7b-pt")]
)
def test_a_model_that_no_flag_describes_goes_by_its_model_name(model, name):
    plan, cfg, piece = a_plan(model, "v5e:4x4", {"fsdp": 16})
    text = export_plan(plan, cfg, piece, "maxtext")
    flags = maxtext_flags(text)
    assert flags["model_name"] == name
    assert "decoder_block" not in flags
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert parse_export(plain, "maxtext") == plan


def test_a_model_name_stands_for_its_very_numbers():
    cfg = load_model("gpt-oss-20b")
    assert named_model(cfg) == "gpt-oss-20b"
    assert named_model(replace(cfg, vocabulary=200_000)) is None
    assert named_model(load_model("llama-3-8b")) is None  # by flags
    assert "model" in obstacles("gemma-2-9b", "v5e:4x4", {"fsdp": 16})


def test_experts_with_biases_drop_no_tokens_in_maxtext():
    found = obstacles("gpt-oss-20b", "v5e:4x4", {"fsdp": 16}, expert_dispatch="dense")
    assert set(found) == {"expert_dispatch"}
