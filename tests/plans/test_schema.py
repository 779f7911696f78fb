"""The published JSON Schema of plans says every key, its choices, and takes what a loader does."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from tests.apps.commands import run
from tests.plans.test_files import FIVE, PLAN
from tests.plans.test_serve_plan import BY_HAND

from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest
from shardwise.plans import TrainPlan
from shardwise.plans.files import KINDS, keys_of, plan_dict
from shardwise.plans.schema import WORDS, plan_schema
from shardwise.scheduling import PipelineKind


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_those_of_the_plan_and_those_that_a_person_writes(kind):
    schema = plan_schema(kind)
    assert list(schema["properties"]) == ["kind", *WORDS[kind], *keys_of(KINDS[kind])]
    assert schema["properties"]["kind"]["const"] == kind
    tables = [schema, *schema["$defs"].values()]
    assert all(table["additionalProperties"] is False for table in tables)
    keys = [said for table in tables for said in table["properties"].values()]
    assert all(len(said["description"]) > 5 for said in keys)


TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object"}
TYPES |= {list: "array"}


def faults(schema, data):
    """The keys that the schema lacks, has otherwise, or misses: what a validator would say."""
    found = [key for key in data if key not in schema["properties"]]
    found += [f"no {key}" for key in schema["required"] if key not in data]
    for rule in schema["allOf"]:
        if not any(set(way["required"]) <= data.keys() for way in rule["anyOf"]):
            found.append(f"none of {rule}")
    for key, value in data.items():
        said = schema["properties"].get(key, {})
        kinds = said.get("type", list(TYPES.values()))
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        kinds |= {"integer"} if "number" in kinds else set()
        if TYPES.get(type(value), "array") not in kinds and value is not None:
            found.append(f"{key} is {value!r}")
        if value not in said.get("enum", [said.get("const", value)]):
            found.append(f"{key} is {value!r}")
    return found


def examples():
    """Every plan in the pages, the examples and the tests that a person wrote, by where it is."""
    root = Path(__file__).parents[2]
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)):
            if "\nmesh:" in block:
                yield f"{page.name} {number}", block
    for file in sorted((root / "examples").glob("*.yaml")):
        yield file.name, file.read_text()
    yield from {
        "FIVE": FIVE,
        "BY_HAND": BY_HAND,
        "full": yaml.safe_dump(plan_dict(PLAN), sort_keys=False),
    }.items()


def test_what_the_loader_takes_the_schema_takes(tmp_path):
    found = dict(examples())
    assert len(found) >= 7
    for name, text in found.items():
        file = tmp_path / "plan.yaml"
        file.write_text(text)
        plan = load_plan(file)
        kind = next(kind for kind, cls in KINDS.items() if isinstance(plan, cls))
        for said in (yaml.safe_load(text), plan_dict(plan)):
            assert faults(plan_schema(kind), said) == [], name


@pytest.mark.parametrize("lost", ["model", "slice", "mesh", "batch", "length"])
def test_what_the_loader_refuses_the_schema_refuses(lost, tmp_path):
    rest = {key: value for key, value in yaml.safe_load(FIVE).items() if key != lost}
    assert faults(plan_schema("train"), rest)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(rest))
    with pytest.raises(BadRequest):
        load_plan(tmp_path / "plan.yaml")


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
