"""Refusals as OpenAI's API writes them: a message, the field that it is about, a code."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from shardwise.errors import shown

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

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": KINDS.get(self.status, kind),
                "param": self.param,
                "code": self.status,
            }
        }


def bad(param: str | None, message: str) -> ApiError:
    """A 400 that names its field."""
    return ApiError(400, message, param)


def invalid(error: ValidationError) -> ApiError:
    """The first field at fault, and what may stand there: for a choice of types each of them."""
    found = error.errors(include_url=False)
    first = found[0]
    if first["type"].startswith("json_") or not first["loc"]:
        return bad(None, f"the body is no JSON object: {first['msg']}")
    param = str(first["loc"][0])
    mine = [e for e in found if e["loc"] and str(e["loc"][0]) == param]
    said = " or ".join(dict.fromkeys(_said(e) for e in mine[:4]))
    return bad(param, f"{param}: {said}; it is {shown(first['input'])}")


_SAYS = {
    "extra_forbidden": "this server knows no such field; leave it out",
    "none_required": "this server does not support it; leave it out",
    "missing": "it is required",
}


def _said(error: Any) -> str:
    place = "".join(f"[{part}]" for part in error["loc"][1:] if isinstance(part, int))
    said = str(_SAYS.get(error["type"], error["msg"]))
    return f"{said} at {place}" if place else said
