"""Experts apart over expert (and tensor), dropless and with enough slots, equal one device."""

from tests.equivalence import cases

SPREAD = {"expert_dispatch": "ragged", "expert_over_tensor": True}


@cases.combinations(
    ("mixtral", {"expert": 4}, {"expert_dispatch": "ragged"}),
    ("mixtral", {"expert": 2}, {"expert_dispatch": "dense", "expert_capacity": 2.0}),
    ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}, {"expert_dispatch": "ragged"}),
    ("mixtral", {"data": 2, "expert": 2}, {"microbatches": 2, "expert_capacity": 2.0}),
    ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}, {**SPREAD, "remat": "block"}),
    ("gpt-oss", {"expert": 2, "tensor": 2}, SPREAD),
    ("deepseek-v3", {"expert": 2, "context": 2, "tensor": 2}, {"expert_dispatch": "ragged"}),
    ("mixtral", {"expert": 2, "tensor": 2}, {"expert_dispatch": "ragged", "bits": 64}),
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
