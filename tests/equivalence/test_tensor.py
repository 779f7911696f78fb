"""Tensor parallelism, with and without sequence parallelism, equals one device."""

from tests.equivalence import cases


@cases.combinations(
    ("llama", {"tensor": 2}, {}),
    ("llama", {"tensor": 4}, {"remat": "block"}),  # K = 2: KV heads on several devices
    ("llama", {"tensor": 2}, {"sequence_parallel": False}),
    ("llama", {"fsdp": 2, "tensor": 2}, {"attention_kernel": "scores"}),
    ("llama", {"data": 2, "fsdp": 2, "tensor": 2}, {"remat": "block", "microbatches": 2}),
    ("gemma2", {"fsdp": 2, "tensor": 2}, {"remat_kinds": {"attention": "recompute"}}),
    ("llama", {"fsdp": 2, "tensor": 2}, {"bits": 64}),
    ("llama", {"tensor": 2}, {"tensor_matmul": "one_way"}),
    ("llama", {"tensor": 4}, {"tensor_matmul": "both_ways", "remat": "block"}),
    (
        "llama",
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"tensor_matmul": "both_ways", "microbatches": 2},
    ),
    ("gpt2", {"context": 2, "tensor": 4}, {"tensor_matmul": "both_ways", "context_method": "ring"}),
    ("deepseek-v3", {"fsdp": 2, "tensor": 2}, {"tensor_matmul": "one_way"}),
    ("llama", {"fsdp": 2, "tensor": 4}, {"tensor_matmul": "both_ways", "bits": 64}),
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
