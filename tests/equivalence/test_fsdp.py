"""Parameters stored in pieces, gathered again or kept, equal one device."""

from tests.equivalence import cases


@cases.combinations(
    ("llama", {"fsdp": 4}, {"weight_gather": "per_microbatch", "remat": "block"}),
    slow=[
        ("llama", {"fsdp": 2, "context": 2}, {"storage_axes": ("fsdp",), "zero": 2}),
    ],
    long=[
        ("llama", {"fsdp": 8}, {}),
        ("llama", {"data": 2, "fsdp": 2}, {"remat": "offload", "microbatches": 2}),
        ("llama", {"fsdp": 2}, {"weight_gather": "per_microbatch"}),
        ("llama", {"fsdp": 2, "context": 2}, {"remat": "matmul_outputs", "bits": 64}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
