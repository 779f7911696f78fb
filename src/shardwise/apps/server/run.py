"""Run a server until it is asked to end: sockets, signals, the log."""

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from types import FrameType
from typing import Any

import uvicorn

from shardwise.apps.server.app import server_app
from shardwise.apps.server.errors import refusal_document
from shardwise.apps.server.gate import JsonLines, log
from shardwise.apps.server.state import ServerLimits, ServerState
from shardwise.apps.web.connection import bounded, most_connections
from shardwise.apps.web.hosts import HostRule
from shardwise.boundary.records import keys
from shardwise.commands.run.serving import EngineThread, ServedModel, StoppedError
from shardwise.errors import BadRequest

LINGER = 0.25
"""Seconds in which requests that were on their way are still told that the server ends."""
SILENT = 3.0
"""Seconds in which a client that is connected and has not asked yet still may, and is told."""
FEWEST = 0
"""Of a socket's queue, at its end: the kernel takes one connection then and lets others wait."""
ONCE = 1.0
"""Seconds in which a signal that comes again is the same one (to a process and to its group)."""
HURRY = 1.0
"""Seconds after a second signal, or after the last one for answers, in which clients read that
there is none."""
EVERY = 10.0
"""Seconds between two lines about steps."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything is loaded. Raises BadRequest."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(kind, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise BadRequest(f"cannot listen on --host {host} --port {port}: {error}") from None
    return made


@contextmanager
def running(
    replica: ServedModel,
    limits: ServerLimits | None = None,
    api_keys: tuple[str, ...] = (),
    hosts: HostRule | None = None,
) -> Iterator[tuple[ServerState, str]]:
    """A server for this process alone, on a thread: its state and its address."""
    listening = bound("127.0.0.1", 0)
    with _stated(replica, limits or ServerLimits(), api_keys, hosts) as state:
        server = uvicorn.Server(config_of(state))
        runs = Thread(target=server.run, kwargs={"sockets": [listening]})
        runs.start()
        while not server.started and runs.is_alive():
            time.sleep(0.005)
        try:
            yield state, _address(listening)
        finally:
            server.should_exit = True
            runs.join()


def run_server(
    replica: ServedModel,
    listening: socket.socket,
    *,
    limits: ServerLimits,
    api_keys: tuple[str, ...] = (),
    hosts: HostRule | None = None,
    level: str = "info",
    ready: Callable[[str], None] = lambda _: None,
) -> int:
    """Serve until SIGTERM or Ctrl-C; a second one gives what runs a 503. The exit code."""
    _set_log(level)
    log.info("serving", extra={"fields": {"model": replica.name, **replica.serves}})
    gc.collect()
    gc.freeze()  # a look through all that was loaded would hold every answer for half a second
    with _stated(replica, limits, api_keys, hosts) as state:
        server = uvicorn.Server(config_of(state, raised=True))

        async def serve() -> None:
            ending = asyncio.Event()
            server.handle_exit = _on_signal(server, state, asyncio.get_running_loop(), ending)
            watches = [
                _end(server, state, listening, ending),
                _failure(state, ending),
                _steps(state),
            ]
            watches.append(_ready(server, lambda: ready(_address(listening))))
            tasks = [asyncio.create_task(watch) for watch in watches]
            await server.serve([listening])
            for task in tasks:
                task.cancel()

        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve())
        failure = state.thread.failure
        return 0 if failure is None or isinstance(failure, StoppedError) else 1


@contextmanager
def _stated(
    replica: ServedModel, limits: ServerLimits, api_keys: tuple[str, ...], hosts: HostRule | None
) -> Iterator[ServerState]:
    """What a server's requests share, with the engine's thread while they come."""
    with EngineThread(replica.engine) as thread:
        yield ServerState(
            replica=replica,
            thread=thread,
            limits=limits,
            api_keys=api_keys,
            hosts=hosts or HostRule(),
        )


def config_of(state: ServerState, *, raised: bool = False) -> uvicorn.Config:
    """How uvicorn runs a server; with `raised` the process takes all files that it may have."""
    asked = state.limits.connection
    limits = replace(asked, connections=most_connections(asked.connections, raised=raised))

    def heard(status: int, message: str) -> None:
        state.metrics.answered("none", status)
        log.info("refused", extra={"fields": {"status": status, "error": message[:300]}})

    return uvicorn.Config(
        server_app(state),
        http=bounded(limits, state.pace, document=refusal_document, heard=heard),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        backlog=min(2048, limits.connections),
        timeout_keep_alive=int(limits.idle),
        timeout_graceful_shutdown=5,
        server_header=False,
        proxy_headers=False,
    )


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _ready(server: uvicorn.Server, tell: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    tell()


def _on_signal(
    server: uvicorn.Server,
    state: ServerState,
    loop: asyncio.AbstractEventLoop,
    ending: asyncio.Event,
) -> Any:
    first = 0.0

    def hear(sig: int, frame: FrameType | None) -> None:
        nonlocal first
        if state.draining and time.monotonic() - first < ONCE:
            return
        first = first or time.monotonic()
        log.info("signal", extra={"fields": {"signal": sig, "again": state.draining}})
        told = partial(_hurry, server, state, loop) if state.draining else ending.set
        state.draining = True
        loop.call_soon_threadsafe(told)

    return hear


def _hurry(server: uvicorn.Server, state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
    """End what runs: its clients hear so, and are left where they do not read it."""
    state.thread.stop("the server was stopped before this answer was complete")

    loop.call_later(HURRY, _leave, server)


def _leave(server: uvicorn.Server) -> None:
    for connection in list(server.server_state.connections):
        transport: Any = connection.transport
        transport.abort()


async def _end(
    server: uvicorn.Server, state: ServerState, listening: socket.socket, ending: asyncio.Event
) -> None:
    """Once asked to: let what was accepted finish while there is time, tell others so, then close.
    Who has no whole answer by then is told, too."""
    await ending.wait()
    end = time.monotonic() + state.limits.drain
    log.info("draining", extra={"fields": {"active": state.active, "answers": state.waiting}})
    await state.drained(end)
    await asyncio.sleep(LINGER)
    await _close(server, listening)
    await _heard(server, time.monotonic() + SILENT)
    await asyncio.sleep(LINGER)  # who is connected and has asked before may ask again
    if not await state.drained(end):
        state.thread.stop("the server stopped before the answer ended; raise --drain-time")
        if not await state.drained(time.monotonic() + HURRY):
            _leave(server)
    engine = state.replica.engine
    left = {"unfinished": state.active, "pages_used": engine.pages - engine.available}
    log.info("ends", extra={"fields": left})
    server.should_exit = True


async def _heard(server: uvicorn.Server, end: float) -> None:
    """Wait until every client has asked something: its request may be on its way, and closing now
    would reset it without a word."""

    def silent() -> bool:
        connections: Any = server.server_state.connections
        return any(connection.cycle is None for connection in connections)

    while silent() and time.monotonic() < end:
        await asyncio.sleep(0.02)


async def _close(server: uvicorn.Server, listening: socket.socket) -> None:
    """Stop listening, and hand over whom the kernel has connected already: a socket that is closed
    resets those in its queue. The loop closes its own some time later, so the queue is held by
    another descriptor until it is empty, and made short first, so that none comes meanwhile."""
    taken: list[socket.socket] = []
    with listening.dup() as held:
        for listener in server.servers:
            listener.close()
        await asyncio.sleep(0)
        held.setblocking(False)
        held.listen(FEWEST)
        with suppress(OSError):  # nobody waits
            while True:
                taken.append(held.accept()[0])
    protocol: Any = server.config.http_protocol_class
    made = partial(protocol, config=server.config, server_state=server.server_state, app_state={})
    for connection in taken:
        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(made, connection)


async def _failure(state: ServerState, ending: asyncio.Event) -> None:
    """End where the engine has failed: whoever started the server starts it again."""
    while state.thread.failure is None:
        await asyncio.sleep(0.5)
    state.draining = True
    ending.set()


async def _steps(state: ServerState) -> None:
    """A line about steps, measured beside predicted, while there are any."""
    while True:
        await asyncio.sleep(EVERY)
        said = state.trace.summary(EVERY)
        if said.steps:
            log.info("steps", extra={"fields": keys(said) | {"answers": state.waiting}})


def _set_log(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("shardwise", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper() if name == "shardwise" else "WARNING")
