"""DP and ZeRO-0, 1 and 2, and hybrid over replica, equal one device."""

import pytest
from tests.equivalence import cases

CASES = [
    ("llama", {"data": 8}, {"zero": 0}),
    ("llama", {"data": 2}, {"zero": 1, "remat": "block"}),
    ("llama", {"data": 4}, {"zero": 2, "microbatches": 2}),
    ("llama", {"replica": 2, "data": 2}, {"zero": 1, "microbatches": 2}),
    ("llama", {"replica": 2, "data": 2, "fsdp": 2}, {"zero": 2, "remat": "block"}),
]


@pytest.mark.parametrize("case", CASES, ids=cases.label)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)
