"""Pipelines by the schedule's table, alone and with other strategies, equal one device."""

from tests.equivalence import cases

INTERLEAVED = {"pipeline_schedule": "interleaved", "virtual_stages": 2}
DUAL = {"pipeline_schedule": "dualpipe", "virtual_stages": 2, "expert_dispatch": "ragged"}
ZERO_BUBBLE = {"pipeline_schedule": "zb_h1", "microbatches": 4, "remat": "block"}


@cases.combinations(
    ("llama", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "gpipe"}),
    ("llama", {"stage": 3}, {"microbatches": 4, "remat": "block"}),
    ("gemma2", {"stage": 2}, {**INTERLEAVED, "microbatches": 4}),
    ("llama", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "zb_h1"}),
    ("gemma2", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "zb_v", "virtual_stages": 2}),
    ("gpt-oss", {"stage": 2}, {**DUAL, "microbatches": 4}),
    ("llama", {"stage": 2, "fsdp": 2, "tensor": 2}, {"microbatches": 2, "remat": "block"}),
    ("gpt2", {"stage": 2, "data": 2, "context": 2}, {**ZERO_BUBBLE, "context_method": "ring"}),
    ("mixtral", {"stage": 2, "expert": 2}, {"microbatches": 2, "expert_dispatch": "ragged"}),
    ("llama", {"stage": 2, "fsdp": 2}, {**ZERO_BUBBLE, "zero": 2, "bits": 64}),
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
