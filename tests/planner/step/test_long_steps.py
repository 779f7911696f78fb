"""The end of a long pipelined step, from two short ones: equal to laying all of it out."""

import pytest

from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.price import plan as priced_plan
from shardwise.planner.price.plan import passes_end
from shardwise.plans import TrainPlan, model_hash

CFG = load_model("llama-3-8b")
PIECE = parse_slice("4*h100:8")


def plan(schedule: str, chunks: int, layers: tuple[int, ...], microbatches: int) -> TrainPlan:
    return TrainPlan(
        model="llama-3-8b",
        model_hash=model_hash(CFG),
        slice=str(PIECE),
        mesh={"stage": 4, "data": 2, "tensor": 4},
        slices=4,
        box=(8,),
        global_batch_sequences=2 * microbatches,
        sequence_length=2048,
        microbatches=microbatches,
        layers_per_stage=layers,
        pipeline_schedule=schedule,  # type: ignore[arg-type]
        virtual_stages=chunks,
    )


@pytest.mark.parametrize(
    ("schedule", "chunks", "layers"),
    [
        ("gpipe", 1, (8, 8, 8, 8)),
        ("1f1b", 1, (8, 8, 8, 8)),
        ("1f1b", 1, (7, 9, 9, 7)),
        ("interleaved", 4, (8, 8, 8, 8)),
        ("zb_h1", 1, (8, 8, 8, 8)),
        ("dualpipe", 2, (8, 8, 8, 8)),
    ],
)
@pytest.mark.parametrize("microbatches", [16, 48])
def test_two_short_steps_tell_a_long_one(schedule, chunks, layers, microbatches, monkeypatch):
    made = plan(schedule, chunks, layers, microbatches)
    priced = evaluate_train(made, CFG, PIECE).priced
    short = passes_end(made, CFG, priced)
    monkeypatch.setattr(priced_plan, "_SETTLED", microbatches)
    assert short == pytest.approx(passes_end(made, CFG, priced), rel=1e-9)
    events = priced_plan.step_timeline(made, CFG, priced).events
    passes = [e.end for e in events if e.stream == "compute" and e.kind in "FBW"]
    assert short == pytest.approx(max(passes), rel=1e-9)
