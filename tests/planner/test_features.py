"""Features of a plan are kinds: no name, identifier or size moves a range."""

from dataclasses import replace

import pytest

from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.features import FEATURES, features_of
from shardwise.plans import TrainPlan, model_hash
from shardwise.roofline.residuals import read_residuals


def answer(model="llama-3-8b", on="h100:8", **changes):
    """A priced plan on one domain."""
    cfg, piece = load_model(model), parse_slice(on)
    plan = TrainPlan(
        model=model,
        model_hash=model_hash(cfg),
        slice=on,
        mesh={"fsdp": piece.devices},
        slices=piece.count,
        box=tuple(piece.shape),
        global_batch_sequences=piece.devices,
        sequence_length=4096,
        layers_per_stage=(cfg.layers,),
        microbatches=1,
        **changes,
    )
    return evaluate_train(plan, cfg, piece)


def test_every_feature_has_a_value():
    assert set(features_of(answer())) == set(FEATURES)
    assert all("{}" in about for about in FEATURES.values())


@pytest.mark.parametrize(
    ("changes", "feature", "value"),
    [
        ({}, "generation", "hopper"),
        ({"on": "mi300x:8"}, "generation", "mi300x"),
        ({}, "vendor", "nvidia"),
        ({"stack": "megatron"}, "kernels", "transformer engine"),
        ({"stack": "xla"}, "kernels", "cudnn"),
        ({"on": "v5p:2x2x2", "stack": "xla"}, "kernels", "splash"),
        ({"stack": "fsdp", "attention_kernel": "scores"}, "kernels", "scores"),
        ({}, "precision", "16 bit"),
        ({}, "mlp", "dense"),
        ({"model": "qwen3-30b-a3b", "on": "2*h100:8"}, "mlp", "routed"),
        ({"model": "deepseek-v2-lite", "on": "2*h100:8"}, "mixer", "latent"),
        ({"on": "2*h100:8"}, "devices", "several domains"),
        ({"model": "qwen3-0.6b", "on": "h100:1"}, "devices", "one chip"),
        ({"stack": "fsdp"}, "compiler", "eager"),
        ({"stack": "fsdp", "compiled": True}, "compiler", "compiled"),
        ({"lora_rank": 8}, "trained", "adapters"),
    ],
)
def test_values(changes, feature, value):
    assert features_of(answer(**changes))[feature] == value


def test_names_tell_nothing():
    """Other words in place of every name leave all features alone."""
    found = answer()
    plan = replace(found.plan, model="x7f3", model_hash="0" * 12)
    other = replace(found, plan=plan, cfg=replace(found.cfg, name="q", architecture="q"))
    assert features_of(other) == features_of(found)


def test_the_year_is_that_of_the_software():
    assert features_of(answer(), "2023")["year"] == "2023"
    assert features_of(answer())["year"] > "2023"


@pytest.mark.parametrize("on", ["v4:2x2x1", "v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1"])
def test_software_that_nobody_published_runs_of_is_less_sure(on):
    """Our own trainer is priced by compiled programs: its ranges are those of a trainer that was
    left out, wider than MaxText's (docs/lab/log.md says how many of its steps they hold)."""
    table, features = read_residuals(), features_of(answer(on=on, stack="xla"))
    known = table.range_of(features)
    ours = table.range_of(
        features | {"trainer": features_of(answer(on=on, stack="jax"))["trainer"]}
    )
    trainers = table.features["trainer"]
    wider = trainers.unseen / trainers.values["xla"].wider
    assert wider > 1.1
    assert ours.high - ours.low > 1.1 * (known.high - known.low)
    assert "no published run of this training software (jax) is known" in ours.why
