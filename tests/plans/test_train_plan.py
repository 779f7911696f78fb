"""TrainPlan refuses what cannot be, by name, value, rule and remedy."""

import re
from dataclasses import replace

import pytest

from shardwise.errors import BadRequest
from shardwise.plans import MESH_AXES, TrainDtypes, TrainPlan

PLAN = TrainPlan(
    model="llama-3-8b",
    model_hash="0123",
    slice="v5p:4x4x4",
    mesh={"stage": 2, "fsdp": 16, "tensor": 2},
    box=(4, 4, 4),
    global_batch_sequences=256,
    sequence_length=4096,
    microbatches=4,
    layers_per_stage=(16, 16),
)


def test_derived_values():
    assert PLAN.devices == 64
    assert PLAN.batch_shards == 16
    assert PLAN.tokens == 256 * 4096
    assert PLAN.degree("tensor") == 2
    assert PLAN.degree("context") == 1


def test_the_batch_is_cut_by_every_axis_that_sees_its_own_sequences():
    mesh = {"replica": 2, "data": 2, "fsdp": 2, "expert": 2, "context": 2, "tensor": 2}
    plan = replace(PLAN, mesh=mesh, layers_per_stage=(32,))
    assert plan.batch_shards == 16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"mesh": {"tensro": 2}, "layers_per_stage": (32,)},
            "unknown mesh axis 'tensro'; did you mean 'tensor'? (axes are named by their role)",
        ),
        (
            {"mesh": {"fsdp": 0}, "layers_per_stage": (32,)},
            "mesh axis 'fsdp' has degree 0; a degree is at least 1",
        ),
        (
            {"mesh": {"fsdp": -2}, "layers_per_stage": (32,)},
            "mesh axis 'fsdp' has degree -2; a degree is at least 1",
        ),
        (
            {"mesh": {"tensor": 2, "fsdp": 16}, "layers_per_stage": (32,)},
            "mesh axes stand in the order tensor, fsdp; write them outermost first: fsdp, tensor",
        ),
        ({"zero": 3}, "zero is 3; it takes 0, 1 or 2 (ZeRO-3 is the mesh axis 'fsdp')"),
        (
            {"sequence_length": 0},
            "sequence_length is 0; it must be at least 1 and at most 1,000,000,000,000",
        ),
        (
            {"microbatches": -1},
            "microbatches is -1; it must be at least 1 and at most 1,000,000,000,000",
        ),
        (
            {"global_batch_sequences": 0},
            "global_batch_sequences is 0; it must be at least 1 and at most 1,000,000,000,000",
        ),
        (
            {"layers_per_stage": (32,)},
            "layers_per_stage has 1 entries for 2 stages; give one number of layers per stage",
        ),
        (
            {"layers_per_stage": (32, 0)},
            (
                "layers_per_stage [32, 0] leaves a stage without layers; give every stage at least "
                "one or use fewer stages"
            ),
        ),
        (
            {"global_batch_sequences": 100},
            (
                "global_batch_sequences 100 does not divide into 16 batch shards x 4 microbatches; "
                "the nearest legal batch is 128 sequences, or let microbatches divide it"
            ),
        ),
        (
            {"global_batch_sequences": 1},
            (
                "global_batch_sequences 1 does not divide into 16 batch shards x 4 microbatches; "
                "the nearest legal batch is 64 sequences, or let microbatches divide it"
            ),
        ),
        (
            {
                "mesh": {"fsdp": 16, "context": 4},
                "layers_per_stage": (32,),
                "sequence_length": 4097,
            },
            "sequence_length 4097 does not divide over context=4; use a degree that divides it",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else re.sub(r"\W+", "-", value)[:30],
)
def test_refusals(changes, said):
    with pytest.raises(BadRequest) as refused:
        replace(PLAN, **changes)
    assert str(refused.value) == said


@pytest.mark.parametrize("sequences", [63, 97, 160, 1000])
def test_the_offered_batch_is_legal_and_the_nearest(sequences):
    with pytest.raises(BadRequest) as refused:
        replace(PLAN, global_batch_sequences=sequences)
    offered = int(str(refused.value).split("batch is ")[1].split()[0])
    assert replace(PLAN, global_batch_sequences=offered).tokens == offered * 4096
    legal = list(range(64, 2000, 64))
    assert abs(offered - sequences) == min(abs(n - sequences) for n in legal)


def test_dtypes():
    for field in ("param", "compute", "grad", "master", "moments"):
        with pytest.raises(BadRequest, match="unknown dtype 'f33'; did you mean 'f32'"):
            TrainDtypes(**{field: "f33"})
    with pytest.raises(BadRequest, match="unknown dtype 'none'"):
        TrainDtypes(param="none")


def test_a_plan_is_frozen_and_takes_keywords_only():
    with pytest.raises(AttributeError):
        PLAN.zero = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        TrainPlan("llama-3-8b")  # type: ignore[call-arg]


def test_axes_are_ordered_outermost_first():
    assert MESH_AXES == ("replica", "stage", "data", "fsdp", "expert", "context", "tensor")
