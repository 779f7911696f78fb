"""POST /v1/chat/completions: a chat, as its template writes it, goes on."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardwise.apps.server.answers import AnswerPart, Wish, sampling_of
from shardwise.apps.server.errors import bad
from shardwise.apps.server.fields import ChatFields
from shardwise.apps.server.prompts import chat_prompt, check_room, check_tokens
from shardwise.apps.server.reply import reply
from shardwise.apps.server.reports import Spelling, chat_logprobs, spelling_of
from shardwise.apps.server.state import ServerState
from shardwise.commands.run.serving import ModelText


class ChatForm:
    """How answers are written; `logprobs` is how many others are reported beside each token."""

    prefix = "chatcmpl"
    kind, kind_of_part = "chat.completion", "chat.completion.chunk"

    def __init__(self, name: Spelling, text: ModelText, logprobs: int | None) -> None:
        self._name, self._text, self._logprobs = name, text, logprobs
        self._begun: set[int] = set()

    def choice(self, index: int, piece: AnswerPart) -> dict[str, Any]:
        """A whole message."""
        message = {"role": "assistant", "content": piece.text, "refusal": None, "tool_calls": None}
        return {"index": index, "message": message, **self._rest(piece)}

    def part(self, index: int, piece: AnswerPart) -> dict[str, Any]:
        """What a message has more; its first part says whose it is."""
        role = {} if index in self._begun else {"role": "assistant"}
        self._begun.add(index)
        return {"index": index, "delta": {**role, "content": piece.text}, **self._rest(piece)}

    def _rest(self, piece: AnswerPart) -> dict[str, Any]:
        report = None
        if self._logprobs is not None:
            report = chat_logprobs(self._name, self._text, piece, self._logprobs)
        return {
            "logprobs": report,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
        }


async def chat(state: ServerState, request: Request, fields: ChatFields) -> Response:
    """The next turn of one chat."""
    text = state.replica.text
    _check(fields)
    more = dict(fields.chat_template_kwargs or {})
    if fields.reasoning_effort is not None:
        more["reasoning_effort"] = fields.reasoning_effort
    tools = None if fields.tool_choice == "none" else fields.tools
    generation = fields.add_generation_prompt is not False
    prompt = await chat_prompt(state, fields.messages, tools, generation, more)
    check_tokens(state, prompt, "messages")
    param = "max_tokens" if fields.max_tokens is not None else "max_completion_tokens"
    asked = getattr(fields, param)
    check_room(state, [prompt], 1, "messages")
    room = state.thread.most_tokens - len(prompt)
    check_room(state, [prompt], asked or room, param)
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    wish = Wish(
        prompts=[prompt],
        shown=[None],
        answers=fields.answers,
        sampling=await sampling_of(state, fields, asked or room, logprobs),
        stops=fields.stops,
        keep_stop=bool(fields.include_stop_str_in_output),
        skip_special=fields.skip_special_tokens is not False,
        priority=fields.priority or 0,
    )
    form = ChatForm(spelling_of(fields, text), text, logprobs)
    return await reply(state, request, fields, wish, form)


def _check(fields: ChatFields) -> None:
    """Raises ApiError for fields that do not go together."""
    if fields.max_tokens is not None and fields.max_completion_tokens is not None:
        raise bad("max_tokens", "max_tokens is max_completion_tokens' former name; give one")
    if fields.top_logprobs is not None and not fields.logprobs:
        raise bad("top_logprobs", "top_logprobs: give it with logprobs: true")
