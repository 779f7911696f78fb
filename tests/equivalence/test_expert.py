"""Experts apart over expert (and tensor), dropless and with enough slots, equal one device."""

from tests.equivalence import cases

RAGGED = {"expert_dispatch": "ragged"}
SPREAD = {**RAGGED, "expert_over_tensor": True}


@cases.combinations(
    ("mixtral", {"expert": 4}, RAGGED),
    ("mixtral", {"expert": 2}, {"expert_dispatch": "dense", "expert_capacity": 2.0}),
    ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}, RAGGED),
    ("mixtral", {"data": 2, "expert": 2}, {"microbatches": 2, "expert_capacity": 2.0}),
    ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}, {**SPREAD, "remat": "block"}),
    ("gpt-oss", {"expert": 2, "tensor": 2}, SPREAD),
    ("deepseek-v3", {"expert": 2, "context": 2, "tensor": 2}, RAGGED),
    ("deepseek-v3", {"expert": 2, "tensor": 2}, {**RAGGED, "tensor_matmul": "one_way"}),
    ("mixtral", {"expert": 2, "tensor": 2}, {**RAGGED, "bits": 64}),
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
