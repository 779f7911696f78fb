"""Plans that a model or mesh cannot follow, and the words of the refusal."""

import pytest
from tests.planner.steps import dense, moe

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.planner.checks import check_plan
from shardwise.plans import TrainPlan, model_hash


def plan(cfg, mesh=None, **changes):
    mesh = mesh or {"fsdp": 8}
    return TrainPlan(
        model=cfg.name,
        model_hash=model_hash(cfg),
        slice="h100:8",
        mesh=mesh,
        box=(8,),
        global_batch_sequences=64,
        sequence_length=128,
        microbatches=1,
        layers_per_stage=(cfg.layers,),
        **changes,
    )


def check(cfg, **changes):
    check_plan(plan(cfg, **changes), cfg, parse_slice("h100:8"))


@pytest.mark.parametrize(
    ("cfg", "changes", "words"),
    [
        (
            dense(),
            {"mesh": {"context": 4, "tensor": 2}, "context_method": "ulysses"},
            None,
        ),
        (
            dense(num_attention_heads=4, num_key_value_heads=4, head_dim=16),
            {"mesh": {"context": 4, "tensor": 2}, "context_method": "ulysses"},
            "N=4 query heads over tensor=2 x context=4",
        ),
        (dense(), {"context_method": "ulysses"}, None),
        (dense(), {"expert_capacity": 1.5}, "no routed experts"),
        (dense(), {"expert_over_tensor": True}, "no routed experts"),
        (moe(), {"expert_capacity": 1.5}, None),
        (moe(), {"expert_capacity": 1.5, "expert_dispatch": "ragged"}, "no slots to fill"),
        (moe(), {"expert_imbalance": 1.5}, "same slots"),
        (moe(), {"expert_over_tensor": True}, "no axis 'tensor'"),
        (moe(), {"expert_over_tensor": True, "mesh": {"expert": 4, "tensor": 2}}, None),
        (dense(), {"remat_kinds": {"block_input": "recompute"}}, "nothing is left"),
        (dense(), {"remat_kinds": {"qvk": "keep"}}, "did you mean 'qkv'"),
        (dense(), {"remat_kinds": {"qkv": "offloaded"}}, "did you mean 'offload'"),
        (dense(), {"frozen": ("atention",)}, "did you mean 'attention'"),
        (dense(), {"frozen": ("embedding",), "lora_rank": 8}, "leave `frozen` out"),
        (
            dense(),
            {"frozen": ("attention", "embedding", "lm_head", "mlp_dense", "norms")},
            "nothing is trained",
        ),
        (dense(), {"frozen": ("embedding",)}, None),
    ],
)
def test_choices_are_checked_against_the_model(cfg, changes, words):
    if words is None:
        check(cfg, **changes)
        return
    with pytest.raises(BadRequest, match=words):
        check(cfg, **changes)
