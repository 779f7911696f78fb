"""The JSON Schema of plan files, from the plans themselves, for editors and other programs.

It says which keys there are, what each means, their types and their choices, and which ones a file
needs: those that a person writes (`handwritten.py`, `handwritten_serve.py`). The rules that join
several keys (a batch that divides, stages that add up) are checked when a plan is read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.boundary import read_toml
from shardwise.errors import check_known
from shardwise.plans import handwritten, handwritten_serve
from shardwise.plans.files import FORMER_KEY, KINDS, keys_of

_COUNT, _TIME = {"type": ["integer", "string"]}, {"type": ["number", "string"]}
WORDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "train": {"batch": _COUNT, "length": _COUNT, FORMER_KEY: {"type": "boolean"}},
    "serve": {
        "input": _COUNT,
        "output": _COUNT,
        "rate": {"type": ["number", "string"]},
        **dict.fromkeys(("ttft", "tpot", "e2e"), _TIME),
        "trace": {"type": "string"},
        "spare": {"type": "integer", "minimum": 0},
        "interactivity": {"type": "number", "exclusiveMinimum": 0},
    },
}
"""Of each kind the keys that only a person writes, which become others when the file is read."""
_NEEDED = {
    "train": (tuple(handwritten.EXAMPLE), handwritten.WORD_OF),
    "serve": (handwritten_serve.NEEDED, handwritten_serve.WORD_OF),
}
"""Of each kind the keys that a file needs, and which words stand for which keys of a whole plan."""

ABOUT: Mapping[str, str] = read_toml(
    Path(__file__).parent / "data" / "schema" / "keys.toml", "the keys of plans"
)
"""What each key means; keys of one name mean the same in all tables."""


def plan_schema(kind: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of a "train" or a "serve" plan; other keys are not allowed."""
    from pydantic import TypeAdapter

    check_known("plan kind", kind, KINDS)
    schema = TypeAdapter(KINDS[kind]).json_schema()
    for part in schema.get("$defs", {}).values():
        part |= {"additionalProperties": False, "properties": _described(part["properties"])}
    own = {key: schema["properties"][key] for key in keys_of(KINDS[kind])}
    needed, word_of = _NEEDED[kind]
    either = [
        {"anyOf": [{"required": [name]}, {"required": [key]}]}
        for key, name in word_of.items()
        if name in needed
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "description": f"A {kind} plan of shardwise: the keys that a person writes, or all of them",
        "properties": _described({"kind": {"const": kind}, **WORDS[kind], **own}),
        "required": [name for name in needed if name not in WORDS[kind]],
        "allOf": either,
        "additionalProperties": False,
    }


def _described(properties: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {key: {**said, "description": ABOUT[key]} for key, said in properties.items()}
