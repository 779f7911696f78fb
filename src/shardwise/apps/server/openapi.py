"""/openapi.json, made of the request models."""

from typing import Any

from pydantic.json_schema import models_json_schema

from shardwise.apps.server.fields import BODIES

REF = "#/components/schemas/{model}"
GETS = ("/v1/models", "/health", "/metrics", "/openapi.json", "/debug/state", "/debug/trace")


def openapi(version: str) -> dict[str, Any]:
    """The document. A refusal has the same form everywhere."""
    models = list(BODIES.values())
    _, found = models_json_schema([(m, "validation") for m in models], ref_template=REF)
    schemas = found["$defs"] | {"Error": ERROR}
    paths: dict[str, Any] = {path: {"get": _operation({})} for path in GETS}
    for path, model in BODIES.items():
        content = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
        body = {"requestBody": {"required": True, "content": content}}
        paths[path] = {"post": _operation(body)}
    last = {
        "name": "steps",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 999_999},
    }
    paths["/debug/trace"]["get"]["parameters"] = [last]
    return {
        "openapi": "3.1.0",
        "info": {"title": "shardwise", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}


def _operation(body: dict[str, Any]) -> dict[str, Any]:
    refusal = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    return {
        **body,
        "responses": {
            "200": {"description": "The answer."},
            "default": {"description": "No answer, and why.", "content": refusal},
        },
    }
