"""What every request goes through: its id, its log line, the key, and no new ones at the end."""

import hmac
import json
import logging
import re
import time
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardwise.apps.server.errors import ApiError
from shardwise.apps.server.state import ServerState
from shardwise.apps.web.attended import ClientGoneError
from shardwise.boundary.records import keys

OPEN = ("/health", "/metrics")
"""Paths without a key: what orchestrators and Prometheus read."""
WATCHED = (*OPEN, "/debug/state", "/debug/trace")
"""Paths that answer while the server ends."""
QUIET = OPEN
"""Paths that are logged only where something is wrong with them."""
ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
log = logging.getLogger("shardwise.server")


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.state = state
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if ID.fullmatch(given) else uuid4().hex
        begun, status = time.monotonic(), 0
        scope.setdefault("state", {})["request_id"] = request_id

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        self.state.active += 1
        try:
            refusal = self._misled(scope, headers) or self._refusal(scope["path"], headers)
            if refusal is None:
                await self._app(scope, receive, noted)
            else:
                await refusal.response()(scope, receive, noted)
        except ClientGoneError:
            status = 499
        except Exception:
            log.exception("mistake", extra={"fields": {"request_id": request_id}})
            if not status:
                said = f"internal error of the server; see {request_id} in its log"
                await ApiError(500, said).response()(scope, receive, noted)
        finally:
            self.state.active -= 1
            if scope["state"].get("left"):
                status = 499
            self.state.metrics.answered(_handler(scope), status)
            self._log(scope, request_id, status, time.monotonic() - begun)

    def _misled(self, scope: Scope, headers: Headers) -> ApiError | None:
        """Why a request is not for this server, or of a page that may not ask it."""
        hosts, rule = headers.getlist("host"), self.state.hosts
        if len(hosts) > 1 or (not hosts and scope["http_version"] == "1.1"):
            return ApiError(400, f"a request has one Host header; this one has {len(hosts)}")
        if said := rule.refused(hosts):
            return ApiError(421, said)
        said = rule.foreign(headers)
        return ApiError(403, said) if said else None

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        """Why a request is not let in."""
        state = self.state
        if state.draining and path not in WATCHED:
            end = {"Connection": "close", "Retry-After": "10"}
            return ApiError(503, "the server is stopping; it takes no new requests", headers=end)
        if not state.api_keys or path in OPEN:
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        right = [hmac.compare_digest(key.encode(), known.encode()) for known in state.api_keys]
        if scheme.lower() == "bearer" and any(right):
            return None
        said = "give the server's key as Authorization: Bearer KEY"
        return ApiError(401, said, headers={"WWW-Authenticate": "Bearer"})

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        if scope["path"] in QUIET and status < 400:
            return
        line: dict[str, Any] = {
            "request_id": request_id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
        }
        told = scope.get("state", {})
        if refusal := told.get("refusal"):
            line["error"] = refusal
        if ignored := told.get("ignored"):
            line["ignored"] = ignored
        if usage := told.get("usage"):
            line |= {k: v for k, v in keys(usage).items() if isinstance(v, int)}
            line["cached_tokens"] = usage.prompt_tokens_details.cached_tokens
        log.info("request", extra={"fields": line})


def _handler(scope: Scope) -> str:
    """The path of a route with its parameters' names, or `none`: no client makes a label."""
    if "endpoint" not in scope:
        return "none"
    path: str = scope["path"]
    for name, value in scope["path_params"].items():
        path = path.removesuffix(value) + f"{{{name}}}"
    return path


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
