"""Refusals as OpenAI's API writes them: a message, the field that it is about, a code."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from shardwise.apps.server.documents import Refusal, RefusalReason, sent
from shardwise.boundary.typed import must_be
from shardwise.errors import shown

LONGEST = 100
"""Characters of a field's place that are repeated."""
MOST, LISTED = 64, 1000
"""Mistakes of a body that are looked at, and of which a list is made to find them."""
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is none: `status` of HTTP, and `param`, the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.headers = dict(headers or {})
        self.seconds = 0.0
        """What it took to find out."""

    def document(self) -> Refusal:
        """The body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = KINDS.get(self.status, kind)
        reason = RefusalReason(message=self.message, type=kind, param=self.param, code=self.status)
        return Refusal(error=reason)

    def response(self) -> Response:
        """The answer."""
        return sent(self.document(), self.status, self.headers)


def refusal_document(status: int, message: str) -> Refusal:
    """The body of a refusal that no field is about."""
    return ApiError(status, message).document()


def bad(param: str | None, message: str) -> ApiError:
    """A 400 that names its field."""
    return ApiError(400, message, param)


def invalid(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """The first field of a model at fault, and what may stand there: for a choice of types each of
    those that the value is nearest to."""
    if error.error_count() > LISTED:
        count = error.error_count()
        return bad(None, f"the body has {count:,} mistakes; /openapi.json has what may stand in it")
    found = error.errors(include_url=False)
    first = found[0]
    if not first["loc"]:
        told = f": {first['msg']}" if first["type"].startswith("json_") else ""
        return bad(None, f"the body is not a JSON object{told}")
    param = str(first["loc"][0])
    mine = [Fault(e, model) for e in found[:MOST] if e["loc"] and str(e["loc"][0]) == param]
    near = max(fault.nearness for fault in mine)
    nearest = [fault for fault in mine if fault.nearness == near]
    said = " or ".join(dict.fromkeys(fault.said for fault in nearest[:4]))
    said = said.replace(" or it must be ", " or ")
    return bad(param, f"{nearest[0].path[:LONGEST]}: {said}{nearest[0].value}")


def strangers(error: ValidationError, model: type[BaseModel]) -> list[tuple[str | int, ...]]:
    """The places of unknown fields, where they are all that is wrong and none of them is nearly a
    field's name or has another name here; else none."""
    if error.error_count() > MOST:
        return []
    found = error.errors(include_url=False)
    meant = any(e["type"] != "extra_forbidden" or Fault(e, model).meant for e in found)
    return [] if meant else [e["loc"] for e in found]


INSTEAD = {
    "guided_json": "give the schema as response_format",
    "guided_regex": 'give it as structured_outputs: {"regex": ...}',
    "guided_choice": 'give it as structured_outputs: {"choice": [...]}',
    "guided_grammar": "grammars are not supported; give a JSON schema as response_format",
    "guided_decoding_backend": "there is one; leave it out",
    "max_new_tokens": "did you mean 'max_tokens'?",
    "max_length": "did you mean 'max_tokens'?",
}
"""Fields of other servers, and what this one has in their place."""
_SAYS = {
    "none_required": "this server does not support it; leave it out",
    "missing": "it is required",
}


class Fault:
    """One thing that is wrong with a body: an error of pydantic, whose place names fields, indices
    and, for a choice of types, the type that was tried."""

    def __init__(self, error: Any, model: type[BaseModel]) -> None:
        self._error = error
        self.path, self._depth, known = "", 0, fields_of(model)
        *within, last = error["loc"]
        for part in within:
            self._step(part, part in known)
            if part in known:
                known = known[part]() or known
        self._step(last, last in known or error["type"] == "extra_forbidden")
        self._known = known

    def _step(self, part: Any, known: bool) -> None:
        """One part of the place more, where it is none of the types tried."""
        if isinstance(part, int):
            self.path += f"[{part}]"
        elif known:
            self.path += f".{part}" if self.path else part
        self._depth += isinstance(part, int) or known

    @property
    def nearness(self) -> tuple[bool, int, list[int], bool, bool]:
        """Whether it is a message's part that is not text, how deep in the value it is and how far
        along its lists, whether the type there is right, and whether it is a name that is not
        known."""
        kind, place = self._error["type"], self._error["loc"]
        part = kind == "literal_error" and "content" in place
        along = [index for index in place if isinstance(index, int)]
        return part, self._depth, along, not kind.endswith("_type"), kind == "extra_forbidden"

    @property
    def said(self) -> str:
        """What may stand there."""
        kind = self._error["type"]
        if self.nearness[0]:
            return "this server reads text alone"
        if kind != "extra_forbidden":
            return _SAYS.get(kind) or f"it must be {must_be(self._error)}"
        return f"this server has no field of this name; {self.meant or 'leave it out'}"

    @property
    def meant(self) -> str:
        """What an unknown field may be here, as a hint; empty where that is nothing."""
        name = str(self._error["loc"][-1])
        near = get_close_matches(name, self._known, n=1, cutoff=0.7)
        return INSTEAD.get(name, f"did you mean '{near[0]}'?" if near else "")

    @property
    def value(self) -> str:
        """What stands there."""
        if self._error["type"] in ("extra_forbidden", "missing"):
            return ""
        return f"; it is {shown(self._error['input'])}"


Known = dict[str, Callable[[], Any]]


def fields_of(kind: Any) -> Known:
    """The fields of a model, or of those within an annotation, by their names in a body; each with
    what its own are."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {
            str(field.alias or name): partial(fields_of, field.annotation)
            for name, field in kind.model_fields.items()
        }
    found: Known = {}
    for inner in get_args(kind):
        found |= fields_of(inner)
    return found
