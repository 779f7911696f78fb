"""Data parallelism, ZeRO-0, 1 and 2, and hybrid over replica equal one device."""

from tests.equivalence import cases


@cases.combinations(
    ("llama", {"data": 2}, {"zero": 1, "remat": "block"}),
    slow=[
        ("llama", {"replica": 2, "data": 2, "fsdp": 2}, {"zero": 2, "remat": "block"}),
    ],
    long=[
        ("llama", {"data": 8}, {"zero": 0}),
        ("llama", {"data": 4}, {"zero": 2, "microbatches": 2}),
        ("llama", {"data": 4}, {"zero": 1, "bits": 64}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
