"""The application: lists of views, their answers, and the built page."""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from shardwise.apps.page.call import LEFT
from shardwise.apps.page.controls import ViewState, state_of
from shardwise.apps.page.given import body_of, keep
from shardwise.apps.page.lectures import LECTURES
from shardwise.apps.page.view import GROWTHS, DecisionRows, PageView
from shardwise.apps.page.views import VIEWS
from shardwise.apps.web.attended import ClientGoneError, attended
from shardwise.apps.web.hosts import HostRule
from shardwise.boundary import finite
from shardwise.boundary.records import Record, plain
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
SEARCHES, ANSWERS = 1, 2
"""Made at once: those of a slider that went on are not worth a second core."""
SHEETS = [name for name, view in VIEWS.items() if view.sheet]
TRACED = [name for name, view in VIEWS.items() if view.trace]
PLANNED = [name for name, view in VIEWS.items() if view.plan]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Record):
    """A command and its result."""

    command: str
    result: Mapping[str, object]


def page_app() -> "Guarded":
    """The application; it answers to names of this machine alone, and to no other page."""
    routes = [
        Route("/api/views", _views),
        Route("/api/view/{name}", _view),
        Route("/api/answer/{name}", _answer),
        Route("/api/lecture/{chapter}", _lecture),
        Route("/api/trace/{name}", _trace),
        Route("/api/plan/{name}", _plan),
        Route("/api/sheet/{name}/{growth}", _sheet),
        Route("/api/given", _given, methods=["POST"]),
        Route("/{path:path}", _file),
    ]
    app = Starlette(routes=routes, exception_handlers={ClientGoneError: _left})
    app.state.giving = asyncio.Semaphore(1)
    app.state.turns = {True: asyncio.Semaphore(SEARCHES), False: asyncio.Semaphore(ANSWERS)}
    return Guarded(app, HostRule())


class Guarded:
    """An ASGI application that hosts of other names do not reach, nor pages of other sites what it
    computes."""

    def __init__(self, app: Starlette, rule: HostRule) -> None:
        self._app, self._rule = app, rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if said := self._rule.refused(headers.getlist("host")):
            return _json({"error": said}, status=421)
        if scope["path"].startswith("/api/") and (said := self._rule.foreign(headers)):
            return _json({"error": said}, status=403)
        return None


def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


def _views(request: Request) -> Response:
    return _json([view.heading() for view in VIEWS.values()])


def _lecture(request: Request) -> Response:
    chapter = request.path_params.get("chapter", "")
    try:
        check_known("lecture", chapter, LECTURES)
    except ShardwiseError as error:
        return _json({"error": str(error)}, status=400)
    return _json(LECTURES[chapter])


async def _view(request: Request) -> Response:
    """Figures and tables of a state; with `fine=yes` those of the search too, and with `fine=quick`
    those of a quick one."""
    return await _asked(
        request, lambda view, state, fine: view.document(state, fine == "yes", fine == "quick")
    )


async def _answer(request: Request) -> Response:
    """What the commands' documents say under `result`, call by call."""

    def answers(view: PageView[Any], state: ViewState, fine: str) -> list[CallResult]:
        calls = view.made(state, fine=True)
        return [CallResult(command=one.shell(), result=one.answer().result) for one in calls]

    return await _asked(request, answers, slow=True)


async def _sheet(request: Request) -> Response:
    growth = request.path_params.get("growth", "")

    def rows(view: PageView[Any], state: ViewState, fine: str) -> DecisionRows:
        check_known("growth", growth, GROWTHS)
        check_known("view with a decision sheet", view.name, SHEETS)
        assert view.sheet is not None
        return view.sheet(state, float(growth))

    return await _asked(request, rows, slow=True)


async def _trace(request: Request) -> Response:
    """The timeline that a view shows, as a file for Perfetto."""

    def file(view: PageView[Any], state: ViewState, fine: str) -> Response:
        check_known("view with a timeline", view.name, TRACED)
        assert view.trace is not None
        path = view.trace(state)
        kind = "application/gzip"
        return FileResponse(path, headers=HEADERS, media_type=kind, filename=path.name)

    return await _asked(request, file)


async def _plan(request: Request) -> Response:
    """The plan that a view answers with, as a file that every command takes."""

    def file(view: PageView[Any], state: ViewState, fine: str) -> Response:
        check_known("view with a plan", view.name, PLANNED)
        assert view.plan is not None
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{view.name}.yaml"'}
        return Response(view.plan(state), headers=headers, media_type="application/yaml")

    return await _asked(request, file, slow=True)


async def _given(request: Request) -> Response:
    """Keep files that the page is given, and say how a state names them; one at a time."""
    try:
        async with request.app.state.giving:
            told = request.headers.get("content-length", "")
            body = await body_of(request.stream(), told)
            return _json(await asyncio.to_thread(keep, body))
    except ClientDisconnect:
        raise ClientGoneError from None
    except ShardwiseError as error:
        return _json({"error": str(error)}, status=400)


def _reply(found: Any) -> Response:
    return found if isinstance(found, Response) else _json(found)


async def _asked(
    request: Request, make: Callable[[PageView[Any], ViewState, str], Any], slow: bool = False
) -> Response:
    """What a state asks for, made on another thread once it is its turn; a client that has gone by
    then has none."""
    words = dict(request.query_params)
    fine = words.pop("fine", "no")
    name = request.path_params["name"]
    try:
        check_known("view", name, VIEWS)
        state = state_of(VIEWS[name].state, words)
        turns = request.app.state.turns[slow or fine == "yes"]
        made = _in_turn(turns, lambda: _reply(make(VIEWS[name], state, fine)))
        return await attended(request.receive, made)
    except ShardwiseError as error:
        said = VIEWS[name].refusal(error) if name in VIEWS else str(error)
        return _json({"error": said}, status=400)


async def _in_turn(turns: asyncio.Semaphore, make: Callable[[], Made]) -> Made:
    """Make it when there is room. What has begun keeps its room until it has ended: a search soon
    after nobody waits for it, other answers when they are done."""
    await turns.acquire()
    left, here = Event(), copy_context()
    here.run(LEFT.set, left)
    done = asyncio.get_running_loop().run_in_executor(None, here.run, make)
    done.add_done_callback(lambda ended: (turns.release(), ended.exception()))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        left.set()
        raise


def _file(request: Request) -> Response:
    name = FILES.get(request.path_params["path"])
    if name is None:
        return _json({"error": "no such page; start at /"}, status=404)
    return FileResponse(BUNDLE / name, headers=HEADERS)


def _json(document: Any, status: int = 200) -> Response:
    return JSONResponse(finite(plain(document))[0], status_code=status, headers=HEADERS)
