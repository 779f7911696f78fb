"""The form that a request wants its answers to have, from OpenAI's and vLLM's fields."""

from typing import Any

from shardwise.apps.server.errors import bad
from shardwise.apps.server.fields import GenerationFields
from shardwise.apps.server.prompts import refused
from shardwise.commands.run.serving import Constraint, Form, ModelText


async def form_of(
    fields: GenerationFields, text: ModelText, calls: Any = None
) -> Constraint | None:
    """What may come next of an answer; None where it is free. `calls` are the tools that it must
    call, as `tool_grammar` takes them. Raises ApiError, also for a form that takes too much."""
    if calls is not None:
        with refused("tools"):
            return await text.forms.constraint("tools", calls)
    param = "structured_outputs" if fields.structured_outputs else "response_format"
    asked = [*_format(fields), *_structured(fields)]
    if len(asked) > 1:
        raise bad(param, f"{param}: {len(asked)} forms are given; an answer has one")
    if not asked:
        return None
    with refused(param):
        return await text.forms.constraint(*asked[0])


def _format(fields: GenerationFields) -> list[tuple[Form, Any]]:
    asked = fields.response_format
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [("json_object", None)]
    if asked.json_schema is None:
        raise bad("response_format", "response_format: json_schema is missing; give its schema")
    return [("json_schema", asked.json_schema.json_schema)]


def _structured(fields: GenerationFields) -> list[tuple[Form, Any]]:
    asked = fields.structured_outputs
    if asked is None:
        return []
    found: list[tuple[Form, Any]] = [("json_object", None)] if asked.json_object else []
    if asked.json_schema is not None:
        found.append(("json_schema", asked.json_schema))
    if asked.regex is not None:
        found.append(("regex", asked.regex))
    if asked.choice is not None:
        found.append(("choice", asked.choice))
    if not found:
        raise bad("structured_outputs", "structured_outputs: give json, regex or choice")
    return found
