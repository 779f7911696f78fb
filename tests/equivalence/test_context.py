"""Tokens over context, by all-gather, ring and Ulysses, equal one device."""

from tests.equivalence import cases


@cases.combinations(
    ("llama", {"context": 4}, {"context_method": "ulysses"}),
    slow=[
        ("llama", {"context": 4}, {"context_method": "all_gather"}),
        ("llama", {"context": 4}, {"context_method": "ring", "remat": "block"}),
    ],
    long=[
        ("llama", {"fsdp": 2, "context": 2, "tensor": 2}, {"context_method": "ring"}),
        ("llama", {"data": 2, "context": 2, "tensor": 2}, {"context_method": "ulysses"}),
        ("lfm2", {"fsdp": 2, "context": 2, "tensor": 2}, {"context_method": "ring"}),
        ("gemma2", {"fsdp": 2, "context": 2, "tensor": 2}, {"context_method": "ring"}),
        ("gemma2", {"fsdp": 2, "context": 4}, {"context_method": "all_gather"}),
        ("llama", {"data": 2, "context": 2}, {"context_method": "ring", "bits": 64}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
