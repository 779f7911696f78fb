"""A value of a wrong type in a plan file is refused in words of the plan: no library's."""

import datetime
import re
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import example, given, settings
from tests.plans.test_files import FIVE, PLAN
from tests.plans.test_serve_plan import BY_HAND, plan_of

from shardwise.boundary.typed import must_be
from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest
from shardwise.plans.files import KINDS, plan_dict

OF_A_LIBRARY = re.compile(
    r"should|valid (tuple|int|str|dict|list|bool|num)|unable to|field required|unexpected keyword"
    r"|value error|parsing|instance of|pydantic|another type",
    re.IGNORECASE,
)
WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([3, -1, 2.5, 1e300, "", "many", "1.5", [], [1], [[]], ["a"], {}, {"a": 1}]),
    st.sampled_from([{"a": []}, {"a": {"b": None}}, [None], datetime.date(2024, 1, 2)]),
    st.sampled_from([10**30, [2.5], "9" * 5000, "9" * 39]),
)


def keys(cls, prefix=""):
    """Every key of a plan, and those of its tables, by dotted path."""
    kinds = get_type_hints(cls)
    for field in fields(cls):
        yield f"{prefix}{field.name}"
        for inner in get_args(kinds[field.name]) or (kinds[field.name],):
            if is_dataclass(inner):
                yield from keys(inner, f"{prefix}{field.name}.")


WHOLE = {"train": plan_dict(PLAN), "serve": plan_dict(plan_of())}
BEGUN = {"train": yaml.safe_load(FIVE), "serve": yaml.safe_load(BY_HAND)}
EVERY = [(kind, key) for kind, cls in KINDS.items() for key in ["kind", *keys(cls)]]
WRITTEN = [(kind, key) for kind, values in BEGUN.items() for key in values]


def with_value(values, dotted, value):
    first, _, rest = dotted.partition(".")
    if rest:
        inner = values.get(first)
        value = with_value(inner if isinstance(inner, dict) else {}, rest, value)
    return {**values, first: value}


def said_of(values, path):
    """What is said of a plan file; "" where it is a plan."""
    path.write_text(yaml.safe_dump(values))
    try:
        load_plan(path)
    except BadRequest as error:
        return str(error)
    return ""


@settings(max_examples=400)
@given(place=st.sampled_from(EVERY), value=WRONG)
def test_a_whole_plan_with_a_wrong_value(tmp_path, place, value):
    kind, key = place
    said = said_of(with_value(WHOLE[kind], key, value), tmp_path / "plan.yaml")
    assert not OF_A_LIBRARY.search(said), said


@settings(max_examples=400)
@example(place=("serve", "dtypes"), value="bf16")
@given(place=st.sampled_from(EVERY + WRITTEN), value=WRONG)
def test_a_plan_written_by_hand_with_a_wrong_value(tmp_path, place, value):
    kind, key = place
    said = said_of(with_value(BEGUN[kind], key, value), tmp_path / "plan.yaml")
    assert not OF_A_LIBRARY.search(said), said


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("layers_per_stage", 32, "'layers_per_stage' is 32; it must be a list, such as [2, 4]"),
        ("sequence_parallel", "maybe", "is 'maybe'; it must be true or false"),
        ("dtypes", "bf16", "is 'bf16'; it must be a mapping of keys to values"),
        ("remat_kinds", {"a": "saved"}, "'remat_kinds.a' has no such name; it must be 'block"),
        ("remat", "selective", "; shardwise calls it 'matmul_outputs'"),
        ("chips", {"spot": "x"}, "key 'chips.spot' is 'x'; it must be true or false"),
        ("expert_capacity", "x", "is 'x'; it must be a number"),
    ],
)
def test_the_key_its_value_and_what_it_takes_are_named(tmp_path, key, value, said):
    assert said in said_of(with_value(WHOLE["train"], key, value), tmp_path / "plan.yaml")


def test_a_missing_key_is_called_so(tmp_path):
    values = {key: value for key, value in WHOLE["train"].items() if key != "box"}
    assert "key 'box' is missing" in said_of(values, tmp_path / "plan.yaml")


def test_an_error_that_no_table_knows_is_still_in_our_words():
    assert must_be({"type": "complex_type", "msg": "Input should be"}) == "a value of another type"
