"""Microbatches, their gradients summed once per step or once each, equal one device."""

from tests.equivalence import cases


@cases.combinations(
    slow=[
        ("llama", {"data": 1}, {"microbatches": 4}),
        ("llama", {"data": 2, "fsdp": 2, "tensor": 2}, {"zero": 0, "microbatches": 4}),
    ],
    long=[
        ("llama", {"replica": 2, "data": 2}, {"zero": 1, "microbatches": 2}),
        (
            "llama",
            {"replica": 2, "data": 2, "context": 2},
            {"microbatches": 2, "context_method": "ring"},
        ),
        ("llama", {"data": 2, "fsdp": 2}, {"microbatches": 2, "bits": 64}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
