"""`shardwise generate` and `shardwise chat`: text of a server, or of a checkpoint served for it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.numbers import Number, Whole
from shardwise.apps.cli.options import key_options, refuse
from shardwise.apps.cli.output import tell
from shardwise.apps.cli.parts import needed_for
from shardwise.apps.cli.streams import printable
from shardwise.errors import BadRequest

if TYPE_CHECKING:
    from shardwise.boundary.remote import Endpoint

ENDPOINT = "http://127.0.0.1:8000"
SECONDS = 600.0
"""The longest that one answer may take."""
SAMPLING = ("max_tokens", "temperature", "top_p", "seed")


def answer_options(command: Any) -> Any:
    """Who answers, and how."""
    options = [
        click.option(
            "--model",
            metavar="DIR",
            help="A checkpoint folder, or a serving plan, loaded for this.",
        ),
        click.option("--endpoint", metavar="URL", help=f"A server.  [{ENDPOINT}]"),
        key_options,
        click.option("--served-model", metavar="NAME", help="Default: the server's first."),
        click.option("--max-tokens", type=Whole(least=1)),
        click.option("--temperature", type=Number(least=0, most=100)),
        click.option("--top-p", type=Number(above=0, most=1)),
        click.option("--seed", type=Whole()),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=AnswerCommand)
@click.argument("text")
@answer_options
def generate(text: str, **options: Any) -> None:
    """Go on with TEXT, and print what comes as it comes ("-": TEXT is on standard input)."""
    text = sys.stdin.read() if text == "-" else text
    with _server(options) as (endpoint, name):
        body = {"model": name, "prompt": text, **_sampling(options, {"max_tokens": 128})}
        for part in _parts(endpoint, "/v1/completions", body):
            _show(part)
    click.echo()


@click.command(cls=AnswerCommand)
@answer_options
@click.option("--system", metavar="TEXT", help="What the chat begins with.")
def chat(system: str | None, **options: Any) -> None:
    """Chat with a model, turn by turn, until Ctrl-D."""
    messages = [{"role": "system", "content": system}] if system else []
    with _server(options) as (endpoint, name):
        while (said := _turn()) is not None:
            messages.append({"role": "user", "content": said})
            body = {"model": name, "messages": messages, **_sampling(options, {})}
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


def _sampling(options: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: options[name] for name in SAMPLING if options[name] is not None}
    return {**default, **given, "stream": True}


def _parts(endpoint: "Endpoint", path: str, body: Mapping[str, Any]) -> Iterator[str]:
    """The text of one streamed answer. Raises BadRequest with what the server says against it."""
    from shardwise.boundary.remote import MOST_EVENTS, streamed

    tokens = min(body.get("max_tokens", MOST_EVENTS), MOST_EVENTS)
    for event in streamed(endpoint, path, body, SECONDS, tokens):
        yield from filter(None, event.texts)


@contextmanager
def _server(options: Mapping[str, Any]) -> Iterator[tuple["Endpoint", str]]:
    """Who answers: server and model. A checkpoint is served on this machine for as long as it is
    asked."""
    from shardwise.boundary.remote import server_at
    from shardwise.commands.run.calibration.endpoint import model_of

    if options["model"]:
        if options["endpoint"]:
            raise BadRequest("--model loads a checkpoint and --endpoint asks a server; give one")
        refuse(("api_key", "key_in_clear"), "is of an --endpoint; --model has no server to show it")
        with _loaded(options["model"]) as (url, name):
            yield server_at(url, api_key=None), name
        return
    address = options["endpoint"] or ENDPOINT
    endpoint = server_at(address, api_key=options["api_key"], in_clear=options["key_in_clear"])
    yield endpoint, options["served_model"] or model_of(endpoint)


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
