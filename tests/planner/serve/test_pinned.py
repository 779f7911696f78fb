"""A pin that no server can have is told as such; memory is named where memory is short."""

import pytest

import shardwise as sw
from shardwise.errors import NoFeasiblePlan


@pytest.mark.parametrize(
    ("model", "on", "pins", "said"),
    [
        ("llama-3-8b", "h100:8", {"tensor": 64}, "'tensor' of 64 does not divide N=32"),
        ("llama-3-8b", "v5e:4x4", {"tensor": 3}, "'tensor' of 3 does not divide N=32"),
        ("llama-3-8b", "h100:8", {"tensor": 16}, "takes 16 devices, and h100:8, .* has 8; pin"),
        ("llama-3-8b", "h100:8", {"expert": 8}, "expert=8: llama-3-8b has no routed experts"),
        ("mixtral-8x7b", "h100:8", {"expert": 3}, "has 8 routed experts; pin a degree that"),
        ("llama-3-8b", "h100:8", {"tensor": 8, "data": 2}, "takes 16 devices, and h100:8"),
        ("llama-3-8b", "h100:8", {"fsdp": 2}, "fsdp=2: vLLM has no server of this degree"),
        (
            "mixtral-8x7b",
            "2*h100:8",
            {"expert": 2, "tensor": 8},
            "vLLM has no server with this",
        ),
        ("llama-3-70b", "h100:8", {"tensor": 1}, "tensor=1 pinned fits .*; without the pin one"),
    ],
)
def test_the_reason_is_the_pin(model, on, pins, said):
    with pytest.raises(NoFeasiblePlan, match=said) as refused:
        sw.plan_serve(model, on, input=512, output=64, pins=pins)
    assert "need more memory" not in str(refused.value)


def test_memory_is_named_where_it_is_short():
    with pytest.raises(NoFeasiblePlan, match="need more memory; use v5e:4x4 or larger"):
        sw.plan_serve("llama-3-70b", "v5e:2x2", input=512, output=64, pins={"tensor": 4})


def test_a_training_plan_that_does_not_fit_says_what_was_pinned():
    with pytest.raises(
        NoFeasiblePlan,
        match=r"no plan with tensor=64 pinned fits .*; no plan with fewer axes pinned fits either",
    ):
        sw.plan_train(
            "llama-3-70b",
            "v5e:8x8",
            batch="64seq",
            seq=4096,
            pins={"tensor": 64},
            software="any",
            offload="none",
        )
