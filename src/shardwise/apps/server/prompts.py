"""Prompts: those of chats by the model's template, and what every prompt must keep."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.fields import Message, Tool
from shardwise.apps.server.state import ServerState
from shardwise.boundary.forks import BusyError
from shardwise.errors import BadRequest, MissingPart, ShardwiseError

RESERVED = ("messages", "tools", "add_generation_prompt")


def check_tokens(state: ServerState, prompt: Sequence[int], param: str) -> None:
    """Raises ApiError for an empty prompt, and for tokens that the model does not have."""
    if not prompt:
        raise bad(param, f"{param} has no tokens; give at least 1")
    if max(prompt) >= state.vocabulary:
        raise bad(
            param,
            f"{param} has token {max(prompt)}, which is not below {state.vocabulary:,}, the size "
            "of the model's vocabulary",
        )


async def tokens_of(
    state: ServerState,
    texts: Sequence[str],
    param: str,
    *,
    special: bool = True,
    room: int | None = None,
) -> list[list[int]]:
    """The tokens of texts, beside the event loop. Raises ApiError, at once for a text that has more
    than `room` tokens whatever they are."""
    with refused(param):
        return await state.replica.text.jobs.encode(texts, special=special, room=room)


async def prompts_of(
    state: ServerState, given: Any, param: str, *, special: bool
) -> tuple[list[list[int]], list[str | None]]:
    """Each prompt's tokens, and its text where it came as text: of one or several texts or lists of
    tokens. Raises ApiError."""
    asked: list[Any] = given if isinstance(given, list) else [given]
    shown: list[str | None] = [None] * len(asked)
    if isinstance(asked[0], int):
        asked, shown = [asked], [None]
    elif isinstance(asked[0], str):
        room, shown = state.thread.most_tokens, list(asked)
        asked = await tokens_of(state, asked, param, special=special, room=room)
    for prompt in asked:
        check_tokens(state, prompt, param)
    return asked, shown


@contextmanager
def refused(param: str) -> Iterator[None]:
    """What is done with a client's text, whose refusals are about the field that it came in."""
    try:
        yield
    except BadRequest as error:
        raise bad(param, f"{param}: {error}") from None
    except BusyError as error:
        raise ApiError(503, f"{param}: {error}", param, {"Retry-After": "5"}) from None
    except ShardwiseError as error:
        raise ApiError(
            501 if isinstance(error, MissingPart) else 500, f"{param}: {error}"
        ) from None


def check_room(state: ServerState, prompts: Sequence[Sequence[int]], most: int, param: str) -> None:
    """Raises ApiError where a prompt and an answer of `most` tokens are longer than the model
    takes, which names the one that is too long."""
    room = state.thread.most_tokens
    longest = max(map(len, prompts))
    if longest >= room:
        where = "messages" if param != "max_tokens" else "prompt"
        raise bad(
            where,
            f"{where}: {longest:,} tokens, and the model takes {room:,} in prompt and answer "
            "together; shorten it",
        )
    if longest + most > room:
        raise bad(
            param,
            f"{param} is {most:,} and the prompt has {longest:,} tokens; the model takes {room:,} "
            f"in all, so ask for at most {room - longest:,}",
        )


async def chat_prompt(
    state: ServerState,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    generation: bool,
    more: Mapping[str, Any],
) -> list[int]:
    """The tokens of a chat. Raises ApiError where the model has no template, or refuses it."""
    text = state.replica.text
    if text.template is None:
        raise bad(
            "messages",
            "this model has no chat template (chat_template in its tokenizer_config.json); use "
            "/v1/completions",
        )
    if tools and not text.template.takes_tools:
        raise bad(
            "tools",
            "tools: this model's chat template does not name them, so it would not see them; "
            "leave them out, or describe them in a message",
        )
    for name in more:
        if name in RESERVED:
            said = f"chat_template_kwargs: {name} is a field of the request; give it there"
            raise bad("chat_template_kwargs", said)
    given = {
        "messages": [_message(message) for message in messages],
        "tools": [tool.model_dump(exclude_none=True) for tool in tools] if tools else None,
        "add_generation_prompt": generation,
        "more": dict(more),
    }
    with refused("messages"):
        return await text.jobs.chat(given, state.thread.most_tokens)


def _message(message: Message) -> dict[str, Any]:
    """As templates have it: text parts in one, arguments of calls as objects."""
    found = message.model_dump(exclude_none=True)
    if "reasoning" in found:
        found.setdefault("reasoning_content", found["reasoning"])
    if isinstance(message.content, list):
        found["content"] = "\n".join(part.text for part in message.content)
    found.setdefault("content", "")
    for call in found.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            raise bad("messages", "messages: the arguments of a tool call are not JSON") from None
    return found
