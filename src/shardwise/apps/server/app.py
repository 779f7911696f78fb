"""The server's routes. What all requests share (log, key, limits) is in `gate.py`.

/openapi.json, made of the request models.
"""

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shardwise.apps.server.body import fields_of
from shardwise.apps.server.chat import chat
from shardwise.apps.server.completions import complete
from shardwise.apps.server.documents import (
    EngineState,
    PageCounts,
    ProgramCounts,
    RequestCounts,
    sent,
)
from shardwise.apps.server.embeddings import embeddings
from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.fields import BODIES, ApiModel, DetokenizeFields, TokenizeFields
from shardwise.apps.server.gate import Gate
from shardwise.apps.server.prompts import chat_prompt, check_tokens, refused, tokens_of
from shardwise.apps.server.responses import respond
from shardwise.apps.server.state import ServerState
from shardwise.apps.web.attended import ClientGoneError, attended
from shardwise.apps.web.connection import REFUSAL_SECONDS
from shardwise.boundary.records import keys
from shardwise.commands.run.serving import Engine
from shardwise.errors import ShardwiseError

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


MISTAKES = (400, 404, 413, 415)
"""Refusals of what a client sent, which are late where there are too many of them."""
MOST_TOKENS = 500_000
"""That /tokenize and /detokenize take: more hold up others while they are written as JSON."""

STATE_SECONDS = 0.1
"""That /debug/state waits for the end of a step."""

Post = Callable[[ServerState, Request, Any], Awaitable[Response]]


def server_app(state: ServerState) -> Gate:
    """The server as an ASGI application."""
    posts: dict[str, Post] = {
        "/v1/completions": complete,
        "/v1/chat/completions": chat,
        "/v1/responses": respond,
        "/v1/embeddings": embeddings,
        "/tokenize": tokenize,
        "/detokenize": detokenize,
    }
    gets = {
        "/v1/models": models,
        "/v1/models/{name:path}": models,
        "/health": health,
        "/metrics": metrics,
        "/openapi.json": described,
        "/debug/state": debug_state,
        "/debug/trace": debug_trace,
    }
    routes = [
        Route(path, _with_body(BODIES[path], post), methods=["POST"])
        for path, post in posts.items()
    ]
    routes += [Route(path, get, methods=["GET"]) for path, get in gets.items()]
    app = Starlette(
        routes=routes,
        exception_handlers={ApiError: _refused, HTTPException: _no_route, ClientGoneError: _left},
    )
    app.state.server = state
    return Gate(app, state)


def _with_body(model: type[ApiModel], post: Post) -> Callable[[Request], Awaitable[Response]]:
    """A route whose body is one of the request models. It ends once its client has gone."""

    async def answered(state: ServerState, request: Request, fields: ApiModel) -> Response:
        name = getattr(fields, "model", None)
        if name is not None and name not in state.replica.names:
            raise _no_model(state, name)
        return await post(state, request, fields)

    async def route(request: Request) -> Response:
        state = _state(request)
        fields = await fields_of(state, request, model)
        return await attended(request.receive, answered(state, request, fields))

    return route


def _no_model(state: ServerState, name: str) -> ApiError:
    known = " and ".join(f"'{one}'" for one in state.replica.names)
    said = f"there is no model '{name[:200]}'; this one is {known}"
    return ApiError(404, said, "model")


def _state(request: Request) -> ServerState:
    return request.app.state.server


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    state = _state(request)
    request.state.refusal = str(error)[:300]  # for the log
    if error.status in MISTAKES:
        await asyncio.sleep(state.pace.spent(error.seconds + REFUSAL_SECONDS))
    return error.response()


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    said = f"{request.method} {path}: {error.detail}; /openapi.json lists what is there"
    return ApiError(error.status_code, said, headers=error.headers).response()


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def models(request: Request) -> Response:
    """The model and its adapters, as a list or by a name."""
    state = _state(request)
    base, names = state.replica.name, state.replica.names
    cards = [
        {
            "id": name,
            "object": "model",
            "created": int(state.started),
            "owned_by": "shardwise",
            "root": base,
            "parent": None if name == base else base,
            "max_model_len": state.thread.most_tokens,
        }
        for name in names
    ]
    name = request.path_params.get("name")
    if name is None:
        return sent({"object": "list", "data": cards})
    if name not in names:
        raise _no_model(state, name)
    return sent(cards[names.index(name)])


async def tokenize(state: ServerState, _: Request, fields: TokenizeFields) -> Response:
    """The tokens of a text, or of a chat by the model's template."""
    if (fields.prompt is None) == (fields.messages is None):
        raise bad("prompt", "give either prompt or messages")
    if fields.prompt is not None:
        special = fields.add_special_tokens is not False
        work = _tokens(state, fields.prompt, special)
    else:
        generation, more = fields.add_generation_prompt is not False, fields.chat_template_kwargs
        work = chat_prompt(state, fields.messages or (), fields.tools, generation, more or {})
    tokens = await work
    return sent({"tokens": tokens, "count": len(tokens), "max_model_len": state.thread.most_tokens})


async def _tokens(state: ServerState, prompt: str, special: bool) -> list[int]:
    (tokens,) = await tokens_of(state, [prompt], "prompt", special=special, room=MOST_TOKENS)
    if len(tokens) > MOST_TOKENS:
        raise bad("prompt", f"prompt: {len(tokens):,} tokens, over {MOST_TOKENS:,}; send parts")
    return tokens


async def detokenize(state: ServerState, _: Request, fields: DetokenizeFields) -> Response:
    """The text of tokens."""
    if len(fields.tokens) > MOST_TOKENS:
        raise bad("tokens", f"tokens: {len(fields.tokens):,} ids, over {MOST_TOKENS:,}; send parts")
    if fields.tokens:
        check_tokens(state, fields.tokens, "tokens")
    with refused("tokens"):
        return sent({"prompt": await state.replica.text.jobs.decode(fields.tokens)})


async def health(request: Request) -> Response:
    """200 while new requests are taken."""
    state = _state(request)
    if not state.ready:
        raise ApiError(503, "the server ends" if state.draining else "the engine has failed")
    return Response()


async def metrics(request: Request) -> Response:
    """What Prometheus reads."""
    text = _state(request).metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def described(_: Request) -> Response:
    """The API."""
    return sent(openapi(version("shardwise")))


async def debug_state(request: Request) -> Response:
    """The pool, the prefix tree and the queue, between two steps; of a step that takes long, as one
    whose program is compiled does, what they are in it."""
    state, thread = _state(request), _state(request).thread
    try:
        found = await asyncio.wait_for(thread.told(_engine_state), STATE_SECONDS)
    except TimeoutError:
        found = _engine_state(state.replica.engine)
    except ShardwiseError as error:
        raise ApiError(503, str(error)) from None
    server = {"active": state.active, "answers": state.waiting, "draining": state.draining}
    server["serves"] = {"model": state.replica.name, **state.replica.serves}
    last = {"server": server, "last_10_s": state.trace.summary(10)}
    return sent({**keys(found), "step_seconds": thread.step_seconds, **last})


def _engine_state(engine: Engine) -> EngineState:
    schedulers = [pool.scheduler for pool in engine.pools]
    config = engine.config
    return EngineState(
        pages=PageCounts(
            all=engine.pages,
            size=config.page_size,
            free=sum(scheduler.pool.free for scheduler in schedulers),
            prefix_tree=sum(scheduler.tree.device for scheduler in schedulers),
            available=engine.available,
        ),
        requests=RequestCounts(
            running=engine.outstanding - engine.queued,
            waiting=engine.queued,
            prompt_tokens_to_compute=sum(scheduler.backlog for scheduler in schedulers),
        ),
        programs=ProgramCounts(
            compiled=sum(replica.executor.programs for replica in engine.replicas),
            most=sum(replica.executor.most_programs for replica in engine.replicas),
        ),
        replicas=len(engine.replicas),
        pools=len(schedulers),
        batch=config.batch,
        budget=config.budget,
        policy=config.policy,
    )


async def debug_trace(request: Request) -> Response:
    """The last `steps` steps for ui.perfetto.dev."""
    said = request.query_params.get("steps", "1000")
    if not (said.isascii() and said.isdigit() and 0 < len(said) < 7 and int(said)):
        raise bad("steps", "steps must be a whole number of at least 1")
    events = _state(request).trace.events(int(said))
    return sent({"traceEvents": events, "displayTimeUnit": "ms"})
