"""What a server is asked, and with which key: a text to go on with, a chat."""

from dataclasses import dataclass, field
from typing import ClassVar

from shardwise.boundary import Command
from shardwise.boundary.options import Option, described, option, place

KEY = Option(
    about="Key for the endpoint.  [OPENAI_API_KEY at OPENAI_BASE_URL, SHARDWISE_API_KEY at "
    "SHARDWISE_BASE_URL]",
    metavar="KEY",
    group="A server",
    meaning="a key that clients show to a server",
)
KEY_IN_CLEAR = Option(
    about="Even unencrypted to another host.",
    default=False,
    kind="flag",
    group="A server",
    meaning="let a key go unencrypted to another machine",
)
"""Options of requests that ask a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest(Command):
    """Which model answers, and how: a server at `endpoint`, or a `model` that is loaded here."""

    model: str | None = option(
        "A checkpoint folder, or a serving plan, to load here.", metavar="DIR"
    )
    endpoint: str | None = option("A server.  [http://127.0.0.1:8000]", metavar="URL")
    api_key: str | None = field(default=None, repr=False, metadata=described(KEY))
    key_in_clear: bool = option(KEY_IN_CLEAR)
    served_model: str | None = option("Default: the server's first.", metavar="NAME")
    max_tokens: int | None = option(
        kind="whole", least=1, group="A server", meaning="most tokens of an answer"
    )
    temperature: float | None = option(
        kind="number",
        least=0,
        most=100,
        group="A server",
        meaning="how freely tokens are drawn; 0 takes the likeliest",
    )
    top_p: float | None = option(
        kind="number",
        above=0,
        most=1,
        group="A server",
        meaning="draw among the likeliest tokens of this total probability",
    )
    seed: int | None = option(kind="whole", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(AskRequest):
    """Continue a text."""

    COMMAND: ClassVar[str] = "generate"

    text: str = field(metadata=place())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(AskRequest):
    """Chat with a model, after a `system` message."""

    COMMAND: ClassVar[str] = "chat"

    system: str | None = option(
        "What the chat begins with.",
        metavar="TEXT",
        group="A server",
        meaning="the system message of a chat",
    )
