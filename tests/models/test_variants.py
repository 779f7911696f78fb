"""Switches that no published model of the zoo uses, class by class.

`data/class_variants.jsonl` holds, for each class of the table that transformers 5.23.0 has, its
default config with one switch turned (`changes`), reduced to the keys we read, and the number of
parameters of that class built on torch's meta device (torch 2.13.0, 2026-11).
"""

import json

import pytest
from tests.models.cases import DATA

from shardwise.models import from_hf, params_total
from shardwise.models.architectures import architectures
from shardwise.models.zoo import unpack

CASES = [
    json.loads(line)
    for line in (DATA / "class_variants.jsonl").read_text(encoding="utf-8").splitlines()
]


def name_of(case) -> str:
    return case["config"]["architectures"][0] + "".join(
        f"-{key}={value}" for key, value in case["changes"].items()
    )


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_total_is_that_of_the_class(case):
    config = unpack(case["config"], case.get("runs", {}))
    assert params_total(from_hf(config, name="variant")) == case["params_total"]


def test_most_classes_are_here():
    tried = {case["config"]["architectures"][0] for case in CASES}
    assert len(tried) >= 50
    assert tried <= set(architectures())
