"""`shardwise generate` and `shardwise chat`: text of a server, or of a checkpoint served for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shardwise.apps.cli.command import command, refuse, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import tell
from shardwise.apps.cli.parts import needed_for
from shardwise.apps.cli.streams import printable
from shardwise.errors import BadRequest

if TYPE_CHECKING:
    from shardwise.boundary.remote import Endpoint
    from shardwise.commands.run.asking import AskRequest

ENDPOINT = "http://127.0.0.1:8000"
SECONDS = 600.0
"""The longest that one answer may take."""
SAMPLING = ("max_tokens", "temperature", "top_p", "seed")


@command("generate")
def generate(_: Outputs) -> None:
    """Continue TEXT, and stream the tokens ("-" reads TEXT from standard input)."""
    from shardwise.commands.run.asking import GenerateRequest

    asked = request_of(GenerateRequest)
    text = sys.stdin.read() if asked.text == "-" else asked.text
    with _server(asked) as (endpoint, name):
        body = {"model": name, "prompt": text, "max_tokens": 128, **_sampling(asked)}
        for part in _parts(endpoint, "/v1/completions", body):
            _show(part)
    click.echo()


@command("chat")
def chat(_: Outputs) -> None:
    """Chat with a model, turn by turn, until Ctrl-D."""
    from shardwise.commands.run.asking import ChatRequest

    asked = request_of(ChatRequest)
    messages = [{"role": "system", "content": asked.system}] if asked.system else []
    with _server(asked) as (endpoint, name):
        while (said := _turn()) is not None:
            messages.append({"role": "user", "content": said})
            body = {"model": name, "messages": messages, **_sampling(asked)}
            parts = []
            for part in _parts(endpoint, "/v1/chat/completions", body):
                parts.append(part)
                _show(part)
            click.echo()
            messages.append({"role": "assistant", "content": "".join(parts)})


def _turn() -> str | None:
    """What the person says next; None at the end."""
    if sys.stdin.isatty():
        click.echo("> ", nl=False, err=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _show(text: str) -> None:
    """A piece of an answer; on a terminal what would steer it is spelt out."""
    click.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
    sys.stdout.flush()


def _sampling(asked: "AskRequest") -> dict[str, object]:
    given = {name: getattr(asked, name) for name in SAMPLING}
    return {**{name: value for name, value in given.items() if value is not None}, "stream": True}


def _parts(endpoint: "Endpoint", path: str, body: dict) -> Iterator[str]:
    """The text of one streamed answer. Raises BadRequest with what the server says against it."""
    from shardwise.boundary.remote import MOST_EVENTS, streamed

    tokens = min(body.get("max_tokens", MOST_EVENTS), MOST_EVENTS)
    for event in streamed(endpoint, path, body, SECONDS, tokens):
        yield from filter(None, event.texts)


@contextmanager
def _server(asked: "AskRequest") -> Iterator[tuple["Endpoint", str]]:
    """Who answers: server and model. A checkpoint is served on this machine for as long as it is
    asked."""
    from shardwise.boundary.remote import server_at
    from shardwise.commands.run.calibration.endpoint import model_of

    if asked.model:
        if asked.endpoint:
            raise BadRequest(
                "--model loads a checkpoint and --endpoint asks a server; give one of the two"
            )
        refuse(("api_key", "key_in_clear"), "is of an --endpoint; --model has no server to show it")
        with _loaded(asked.model) as (url, name):
            yield server_at(url, api_key=None), name
        return
    address = asked.endpoint or ENDPOINT
    endpoint = server_at(address, api_key=asked.api_key, in_clear=asked.key_in_clear)
    yield endpoint, asked.served_model or model_of(endpoint)


@contextmanager
def _loaded(folder: str) -> Iterator[tuple[str, str]]:
    with needed_for("generating"):
        from shardwise.apps.server.run import running
        from shardwise.commands.run.serving import ServeModelRequest, keep_programs, open_replica
    keep_programs()
    replica = open_replica(ServeModelRequest(path=folder, sequences=2), tell)
    assert replica is not None, "one process follows nobody"
    with running(replica) as (_, url):
        yield url, replica.name
