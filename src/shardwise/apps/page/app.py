"""The application: lists of views, their answers, and the built page."""

import math
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from shardwise.apps.page.controls import State, state_of
from shardwise.apps.page.view import PageView
from shardwise.apps.page.views import VIEWS
from shardwise.errors import ShardwiseError, check_known

BUNDLE = Path(__file__).parent / "bundle"
FILES = {"": "index.html", "app.js": "app.js", "app.css": "app.css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Nothing of another host is loaded, and no other page frames this one."""
_SEARCHING = Lock()
"""One search at a time: those of a slider that went on are not worth a second core."""


def page_app(hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")) -> Starlette:
    """The application; it answers to those names alone, so that no other page reaches it by a name
    of its own that leads here."""
    routes = [
        Route("/api/views", _views),
        Route("/api/view/{name}", _view),
        Route("/api/answer/{name}", _answer),
        Route("/{path:path}", _file),
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return Starlette(routes=routes, middleware=[guard])


def _views(request: Request) -> Response:
    return _json([view.heading() for view in VIEWS.values()])


def _view(request: Request) -> Response:
    """Figures and tables of a state; with `fine=yes` those of the search too."""
    return _asked(request, lambda view, state, fine: view.document(state, fine))


def _answer(request: Request) -> Response:
    """What the commands' documents say under `result`, call by call."""

    def answers(view: PageView, state: State, fine: bool) -> list[dict[str, Any]]:
        calls = view.made(state, fine=True)
        return [{"command": one.shell(), "result": one.answer().result} for one in calls]

    return _asked(request, answers)


def _asked(request: Request, make: Callable[[PageView, State, bool], Any]) -> Response:
    words = dict(request.query_params)
    fine = words.pop("fine", "no") == "yes"
    try:
        name = request.path_params["name"]
        check_known("view", name, VIEWS)
        state = state_of(VIEWS[name].controls, words)
        if not fine:
            return _json(make(VIEWS[name], state, False))
        with _SEARCHING:
            return _json(make(VIEWS[name], state, True))
    except ShardwiseError as error:
        return _json({"error": str(error)}, status=400)


def _file(request: Request) -> Response:
    name = FILES.get(request.path_params["path"])
    if name is None:
        return _json({"error": "no such page; start at /"}, status=404)
    return FileResponse(BUNDLE / name, headers=HEADERS)


def _json(document: Any, status: int = 200) -> Response:
    return JSONResponse(plain(document), status_code=status, headers=HEADERS)


def plain(value: Any) -> Any:
    """A document as JSON has it: what is infinite or no number is null."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "keys"):
        return {str(key): plain(value[key]) for key in value}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
