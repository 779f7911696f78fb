"""`shardwise generate` and `shardwise chat`: text of a server, or of a checkpoint served for it."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.numbers import Number, Whole
from shardwise.apps.cli.parts import needed_for
from shardwise.apps.cli.streams import printable
from shardwise.errors import BadRequest

ENDPOINT = "http://127.0.0.1:8000"
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
        for choice in _choices(endpoint, "/v1/completions", body):
            _show(choice["text"])
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
            answer = ""
            for choice in _choices(endpoint, "/v1/chat/completions", body):
                part = choice["delta"].get("content") or ""
                answer += part
                _show(part)
            click.echo()
            messages.append({"role": "assistant", "content": answer})


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


def _choices(endpoint: str, path: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of one streamed answer. Raises BadRequest with what the server says against it."""
    from shardwise.evidence.calibration.endpoint import events

    for event in events(endpoint, path, body, timeout=600.0):
        if "error" in event:
            raise BadRequest(f"the server says: {event['error'].get('message')}")
        yield from event.get("choices") or ()


@contextmanager
def _server(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Who answers: address and model. A checkpoint is served on this machine for as long as it is
    asked."""
    if options["model"] and options["endpoint"]:
        raise BadRequest("--model loads a checkpoint and --endpoint asks a server; give one")
    if options["model"]:
        with _loaded(options["model"], lambda line: click.echo(line, err=True)) as found:
            yield found
        return
    from shardwise.evidence.calibration.endpoint import model_of

    endpoint = options["endpoint"] or ENDPOINT
    yield endpoint, options["served_model"] or model_of(endpoint)


@contextmanager
def _loaded(folder: str, tell: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    with needed_for("generating"):
        from shardwise.apps.server.run import running
        from shardwise.workflows.serving import ServeModelRequest, keep_programs, open_replica
    keep_programs()
    replica = open_replica(ServeModelRequest(path=folder, sequences=2), tell)
    assert replica is not None, "one process follows nobody"
    with running(replica) as (_, url):
        yield url, replica.name
