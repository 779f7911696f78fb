"""Listen, say where, and serve the page until Ctrl-C."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from typing import ClassVar
from urllib.parse import parse_qsl

import uvicorn

from shardwise.apps.page.app import page_app
from shardwise.apps.page.controls import state_of
from shardwise.apps.page.grid import SiteGrid, site_grid
from shardwise.apps.page.views import VIEWS
from shardwise.apps.web.connection import ConnectionLimits, bounded, most_connections
from shardwise.apps.web.pace import RefusalPace
from shardwise.boundary import Command
from shardwise.boundary.options import option
from shardwise.commands.base.inputs import COARSE_ANSWER, Words
from shardwise.commands.base.inputs import words as texts
from shardwise.errors import BadRequest, check_known


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(Command):
    """A page on this machine: where it listens, and whether the browser opens it."""

    COMMAND: ClassVar[str] = "ui"

    port: int = option(default=8765, show_default=True, kind="whole", most=65535)
    opens: bool = option(
        "Also open it in the browser.", default=False, kind="flag", flag="--open", group="A server"
    )
    at: str | None = option(
        "Open it at a state: what stands behind the # of a link.", metavar="STATE", group="A server"
    )
    export: str | None = option(
        "Write a site with a grid of answers, which any static host can serve.",
        kind="path",
        metavar="DIR",
        group="Files",
    )
    models: Words = option(
        "With --export: this model, in place of twenty; repeatable.",
        default=(),
        kind="several",
        flag="--model",
        offers="models",
    )
    chips: Words = option(
        "With --export: this chip, in place of ten; repeatable.",
        default=(),
        kind="several",
        flag="--on",
        offers="chips",
    )
    views: Words = option(
        "With --export: this view, in place of all; repeatable.",
        default=(),
        kind="several",
        flag="--view",
        group="Files",
    )

    coarse: bool = option(COARSE_ANSWER)

    def state(self) -> str:
        """What follows the page's address: nothing, or # and the state. Raises BadRequest."""
        if self.at is None:
            return ""
        name, _, words = self.at.removeprefix("#").partition("?")
        check_known("view", name, VIEWS)
        words_ = dict(parse_qsl(words, keep_blank_values=True))
        words_.pop("frame", None)
        state_of(VIEWS[name].state, words_)
        return f"#{self.at.removeprefix('#')}"

    def grid(self) -> SiteGrid:
        """Models, chips and views of a site. Raises BadRequest."""
        grid = site_grid(texts(self.models), texts(self.chips), texts(self.views))
        return replace(grid, coarse=self.coarse)


def listener(host: str, port: int) -> socket:
    """A socket that is bound. Raises BadRequest."""
    made = socket(AF_INET6 if ":" in host else AF_INET, SOCK_STREAM)
    made.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        remedy = "choose another --port, or 0 for a free one"
        raise BadRequest(f"cannot listen on {host}, port {port}: {error}; {remedy}") from None
    return made


def address(made: socket) -> str:
    """Where a browser finds it."""
    host, port = made.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve_page(made: socket, ready: Callable[[str], None]) -> None:
    """Until SIGTERM or Ctrl-C."""
    server = _server()
    threading.Thread(target=_when_started, args=(server, made, ready), daemon=True).start()
    server.run(sockets=[made])


def _server() -> uvicorn.Server:
    asked = ConnectionLimits()
    limits = replace(asked, connections=most_connections(asked.connections))
    return uvicorn.Server(
        uvicorn.Config(
            page_app(),
            http=bounded(limits, RefusalPace()),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=int(limits.idle),
            timeout_graceful_shutdown=5,
        )
    )


def _when_started(server: uvicorn.Server, made: socket, ready: Callable[[str], None]) -> None:
    while not server.started:
        time.sleep(0.01)
    ready(address(made))


@contextmanager
def running() -> Iterator[str]:
    """The page on a thread, for tests and measurements: its address."""
    made, server = listener("127.0.0.1", 0), _server()
    runs = threading.Thread(target=server.run, kwargs={"sockets": [made]})
    runs.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield address(made)
    finally:
        server.should_exit = True
        runs.join()
        made.close()
