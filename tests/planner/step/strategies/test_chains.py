"""Whatever is chosen, a body is one chain with side ops: what its closed form rests on."""

import pytest
from tests.planner.steps import dense, moe, step

from shardwise.planner.step.work import train_work
from shardwise.plans import TrainDtypes

MESH = {"replica": 2, "data": 2, "fsdp": 2, "context": 2, "tensor": 2}

CHOICES = [
    {"context_method": "ring"},
    {"context_method": "ulysses"},
    {"attention_kernel": "scores", "packed_lengths": (64, 64)},
    {"expert_dispatch": "ragged", "expert_imbalance": 1.5},
    {"expert_over_tensor": True},
    {"storage_axes": ("fsdp",), "weight_gather": "per_microbatch"},
    {"optimizer": "muon"},
    {"optimizer": "adafactor", "offload_optimizer": True},
    {"lora_rank": 4},
    {"frozen": ("attention", "embedding")},
    {"mtp_layers": 2},
    {"remat_kinds": {"qkv": "offload", "norm": "recompute"}},
    {"stack": "nanotron"},
]


@pytest.mark.parametrize(
    "choices", CHOICES, ids=lambda c: next(iter(c)) + str(next(iter(c.values())))
)
@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("remat", ["none", "matmul_outputs", "block"])
def test_every_body_is_a_chain_with_side_ops(choices, stage, remat):
    shape = step(
        microbatches=4.0,
        remat=remat,
        choices=choices,
        dtypes=TrainDtypes(param="f32", master="none", grad="f32"),
        stage=stage,
        expert=2,
        **MESH,
    )
    work = train_work(moe(), shape)
    bodies: dict[str, list] = {}
    for o in work.ops:
        bodies.setdefault(o.body, []).append(o)
    assert len({o.id for o in work.ops}) == len(work.ops)
    assert not work.unknown()
    for ops in bodies.values():
        awaited = {i for o in ops for i in o.after}
        side = {o.id for o in ops if o.stream != "compute" and (not o.after or o.id not in awaited)}
        chain = [o for o in ops if o.id not in side]
        for before, o in zip([chain[-1], *chain[:-1]], chain, strict=True):
            waits = set(o.after) - side
            assert waits <= {before.id}, o.id
            assert waits or o is chain[0], o.id
        # No op of a body runs more often than its chain: a round is what they all count in.
        most = max(o.count for o in chain)
        assert all(o.count <= most for o in ops)


def test_phases_tell_the_two_passes_of_an_end_apart():
    work = train_work(dense(), step(fsdp=2, microbatches=2.0, choices={"mtp_layers": 1}))
    for body in ("first", "last"):
        phases = [o.phase for o in work.ops if o.body == body]
        assert set(phases) <= {"forward", "backward", "weight", "recompute"}
        assert {"forward", "backward"} <= set(phases)
