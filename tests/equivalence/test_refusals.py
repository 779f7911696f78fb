"""What is not run is refused by name before anything is compiled; dropped tokens are per shard."""

import numpy as np
import pytest
from tests.equivalence import cases

from shardwise.errors import BadRequest
from shardwise.plans.train import TrainDtypes
from shardwise.runtime import mesh_of
from shardwise.runtime.parallel import loss_and_grads, place

FP8 = TrainDtypes(compute="fp8")
REFUSED = [
    ("llama", {"data": 2}, {"lora_rank": 4}, "lora_rank is 4; the runtime trains the parameters"),
    ("llama", {"data": 2}, {"frozen": ("embedding",)}, "frozen names embedding; the runtime"),
    ("llama", {"data": 2}, {"mtp_layers": 1}, "mtp_layers is 1; the runtime predicts one token"),
    ("llama", {"data": 2}, {"offload_optimizer": True}, "offload_optimizer is set"),
    ("llama", {"data": 2}, {"logit_chunks": 4}, "logit_chunks is 4"),
    ("llama", {"data": 2}, {"remat_kinds": {"mlp_gate": "keep"}}, "remat_kinds names mlp_gate"),
    ("llama", {"data": 2}, {"dtypes": FP8}, "dtype 'fp8' is not supported by the runtime"),
    (
        "llama",
        {"expert": 2},
        {},
        "degree 2, but llama has no routed experts",
    ),
    ("llama", {"tensor": 8}, {}, "mesh axis 'tensor' of 8 does not divide N=4"),
    ("mixtral", {"expert": 8}, {}, "mesh axis 'expert' of 8 does not divide E=4"),
    ("llama", {"context": 8}, {"context_method": "ulysses"}, "'ulysses' cuts N=4 query heads"),
    ("mixtral", {"expert": 4, "tensor": 2}, {"expert_over_tensor": True}, "spreads E=4 experts"),
    ("llama", {"stage": 2}, {"layers_per_stage": (1, 1)}, "adds up to 2 layers; llama has 3"),
    ("gpt-oss", {"stage": 2}, {"pipeline_schedule": "zb_v", "virtual_stages": 2}, "microbatches"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: cases.label(case[:3]))
def test_refused_by_name(case):
    name, mesh, choices, message = case
    plan = cases.plan_of(name, mesh, **choices)
    with pytest.raises(BadRequest, match=message):
        loss_and_grads(plan, cases.config(name), mesh_of({"data": 1}))


@pytest.mark.parametrize(
    ("mesh", "choices", "tensor_matmul", "message"),
    [
        ({"data": 2}, {}, "one_way", "and tensor is 1; use 'plain'"),
        ({"tensor": 2}, {"sequence_parallel": False}, "both_ways", "set it, or use 'plain'"),
        ({"tensor": 2}, {}, "twice", "twice"),
    ],
)
def test_rings_without_an_exchange_are_refused(mesh, choices, tensor_matmul, message):
    plan = cases.plan_of("llama", mesh, **choices)
    with pytest.raises(BadRequest, match=message):
        loss_and_grads(plan, cases.config("llama"), mesh_of({"data": 1}), tensor_matmul)


@pytest.mark.slow
def test_a_row_that_finds_no_slot_is_dropped_shard_by_shard():
    """Capacity 1: the loss on 2 x 2 devices is that of each shard's sequences run alone."""
    cfg, batch = cases.config("mixtral"), cases.batch_of(weighted=False)
    params = cases.start("mixtral", "float32")

    def runner(axes, sequences):
        plan = cases.plan_of("mixtral", axes, global_batch_sequences=sequences)
        mesh = mesh_of(plan)
        run, placed = loss_and_grads(plan, cfg, mesh), place(plan, cfg, mesh, params)
        return lambda part: float(run(placed, part)[0])

    together = runner({"data": 2, "expert": 2}, cases.B)(batch)
    one = runner({"data": 1}, cases.B // 4)
    shards = [{k: v[i : i + 4] for k, v in batch.items()} for i in range(0, cases.B, 4)]
    assert together == pytest.approx(np.mean([one(shard) for shard in shards]), rel=1e-5)
    assert abs(together - runner({"data": 1}, cases.B)(batch)) > 1e-5
