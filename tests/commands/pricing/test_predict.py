"""What a training plan's figures leave open."""

import pytest

from shardwise.commands.pricing.predict import caveats
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.plans import MESH_AXES, TrainPlan, model_hash


def said_of_tiles(model, on, mesh, software="any"):
    """The warning of pieces that fill no tile, if there is one."""
    cfg, piece = load_model(model), parse_slice(on)
    plan = TrainPlan(
        model=model,
        model_hash=model_hash(cfg),
        slice=on,
        mesh=mesh,
        slices=piece.count,
        box=tuple(piece.shape),
        global_batch_sequences=256,
        sequence_length=4096,
        layers_per_stage=(cfg.layers,),
        microbatches=1,
        software=software,
    )
    return [line for line in caveats(evaluate_train(plan, cfg, piece)) if "a TPU's tile" in line]


@pytest.mark.parametrize(
    ("model", "on", "mesh", "rows", "pins"),
    [
        ("llama-3-8b", "v5e:16x16", {"fsdp": 128, "context": 2}, 16, None),
        ("llama-3.2-1b", "v5e:16x16", {"fsdp": 256}, 8, None),
        ("qwen3-0.6b", "v5e:16x16", {"fsdp": 256}, 4, "--pin fsdp=128 --pin data=2"),
        (
            "qwen3-0.6b",
            "v5e:16x16",
            {"fsdp": 128, "context": 2},
            4,
            "--pin fsdp=64 --pin data=2 --pin context=2",
        ),
        ("llama-2-13b", "v6e:16x16", {"fsdp": 256}, 20, "--pin fsdp=128 --pin data=2"),
        ("qwen3-0.6b", "32*h100:8", {"fsdp": 256}, 4, None),
    ],
)
def test_pieces_that_fill_no_tile_are_named_with_degrees_that_do(model, on, mesh, rows, pins):
    said = said_of_tiles(model, on, mesh)
    assert len(said) == (pins is not None)
    for line in said:
        assert f" have {rows} rows" in line
        assert f"; {pins} makes whole tiles" in line
        words = dict(word.split("=") for word in pins.replace("--pin ", "").split())
        pinned = {axis: int(words[axis]) for axis in MESH_AXES if axis in words}
        assert not said_of_tiles(model, on, pinned)


def test_degrees_whose_plan_does_not_fit_are_not_offered():
    (said,) = said_of_tiles("deepseek-v3", "v5e:16x16", {"fsdp": 256})
    assert " have 28 rows" in said
    assert "--pin" not in said


def test_our_trainer_gathers_over_inner_axes_first():
    pieces = {"fsdp": 128, "context": 2}
    assert said_of_tiles("qwen3-0.6b", "v5e:16x16", pieces)
    assert not said_of_tiles("qwen3-0.6b", "v5e:16x16", pieces, software="jax")
    assert said_of_tiles("qwen3-0.6b", "v5e:16x16", {"fsdp": 256}, software="jax")
