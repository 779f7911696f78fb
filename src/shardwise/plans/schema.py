"""The JSON Schema of plan files, from the plans themselves, for editors and other programs.

It says which keys there are, their types and their choices; the rules that join several keys (a
batch that divides, stages that add up) are checked when a plan is read.
"""

from typing import Any

from shardwise.errors import check_known
from shardwise.plans.files import KINDS, keys_of


def plan_schema(kind: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of a "train" or a "serve" plan; other keys are not allowed."""
    from pydantic import TypeAdapter

    check_known("plan kind", kind, KINDS)
    schema = TypeAdapter(KINDS[kind]).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if part.get("type") == "object" and "properties" in part:
            part["additionalProperties"] = False
    properties = {key: schema["properties"][key] for key in keys_of(KINDS[kind])}
    schema["properties"] = {"kind": {"const": kind}, **properties}
    schema["required"] = ["kind", *schema["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
