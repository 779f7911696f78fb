"""The published JSON Schema of plans says every key, its choices, and no other key."""

import json
from dataclasses import MISSING, fields
from typing import get_args

import pytest
from tests.apps.commands import run

from shardwise.errors import BadRequest
from shardwise.plans import TrainPlan
from shardwise.plans.files import KINDS, keys_of
from shardwise.plans.schema import plan_schema
from shardwise.scheduling import PipelineKind


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_those_of_the_plan(kind):
    schema = plan_schema(kind)
    assert list(schema["properties"]) == ["kind", *keys_of(KINDS[kind])]
    assert set(keys_of(KINDS[kind])) == {f.name for f in fields(KINDS[kind])}
    needed = [
        f.name for f in fields(KINDS[kind]) if f.default is MISSING and f.default_factory is MISSING
    ]
    assert sorted(schema["required"]) == sorted(["kind", *needed])
    assert schema["properties"]["kind"] == {"const": kind}
    assert schema["additionalProperties"] is False


def test_choices_and_inner_records():
    schema = plan_schema("train")
    schedules = schema["properties"]["pipeline_schedule"]
    assert schedules["enum"] == list(get_args(PipelineKind))
    assert schedules["default"] == "1f1b"
    inner = schema["$defs"]["TrainDtypes"]
    assert set(inner["properties"]) == {"param", "compute", "grad", "master", "moments"}
    assert inner["additionalProperties"] is False


def test_an_unknown_kind():
    with pytest.raises(BadRequest, match="unknown plan kind 'trian'; did you mean 'train'"):
        plan_schema("trian")


def test_the_command(capsys):
    code, out, err = run(capsys, "plan", "schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == plan_schema("train")
    assert TrainPlan.__name__ == json.loads(out)["title"]
    assert json.loads(run(capsys, "plan", "schema", "--kind", "serve")[1])["title"] == "ServePlan"
