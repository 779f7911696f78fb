"""POST /v1/chat/completions: a chat, as its template writes it, goes on."""

from collections.abc import Callable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from shardwise.apps.server.answers import AnswerPart, Wish, sampling_of
from shardwise.apps.server.documents import (
    ChatChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatPart,
    ThoughtMessage,
)
from shardwise.apps.server.errors import bad
from shardwise.apps.server.fields import ChatFields
from shardwise.apps.server.prompts import chat_prompt, check_room, check_tokens
from shardwise.apps.server.reply import ChoiceWriter, reply
from shardwise.apps.server.reports import Spelling, chat_logprobs, spelling_of
from shardwise.apps.server.state import ServerState
from shardwise.apps.server.tools import (
    after_thought,
    call_part,
    marked,
    must_call,
    read_part,
    reader_of,
)
from shardwise.commands.run.serving import AnswerReader, ModelText


class ChatForm:
    """How answers are written; `logprobs` is how many others are reported beside each token, and
    `reader` makes what finds an answer's reasoning and calls of tools."""

    prefix = "chatcmpl"
    kind, kind_of_part = "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        name: Spelling,
        text: ModelText,
        logprobs: int | None,
        reader: Callable[[], AnswerReader] | None = None,
    ) -> None:
        self._name, self._text, self._logprobs, self._reader = name, text, logprobs, reader
        self._readers: dict[int, AnswerReader | None] = {}

    @property
    def thought(self) -> int | None:
        """Tokens of reasoning so far; None where none is read."""
        counts = [reader.tokens for reader in self._readers.values() if reader is not None]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def choice(self, index: int, piece: AnswerPart) -> ChatChoice:
        """A whole message."""
        reader = self._readers[index] = self._reader() if self._reader else None
        said = read_part(reader, piece)
        calls = [replace(call_part(part), index=None) for part in said.calls] or None
        content = said.text or (None if calls or said.reasoning else "")
        message = ChatMessage(content=content, tool_calls=calls)
        if reader is not None and reader.thinks:
            thought = said.reasoning or None
            message = ThoughtMessage.of(message, reasoning_content=thought, reasoning=thought)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._report(piece),
            finish_reason=_ended(piece, bool(calls)),
            stop_reason=piece.stop_reason,
        )

    def part(self, index: int, piece: AnswerPart) -> ChatPart:
        """What a message has more; its first part says whose it is."""
        first = index not in self._readers
        if first:
            self._readers[index] = self._reader() if self._reader else None
        reader = self._readers[index]
        said = read_part(reader, piece)
        thought = said.reasoning or None
        delta = ChatDelta(
            role="assistant" if first else None,
            content=said.text or None if thought else said.text,
            tool_calls=[call_part(part) for part in said.calls] or None,
            reasoning_content=thought,
            reasoning=thought,
        )
        return ChatPart(
            index=index,
            delta=delta,
            logprobs=self._report(piece),
            finish_reason=_ended(piece, reader is not None and reader.count > 0),
            stop_reason=piece.stop_reason,
        )

    def _report(self, piece: AnswerPart) -> ChatLogprobs | None:
        if self._logprobs is None:
            return None
        return chat_logprobs(self._name, self._text, piece, self._logprobs)


def _ended(piece: AnswerPart, called: bool) -> str | None:
    return "tool_calls" if called and piece.finish == "stop" else piece.finish


async def chat(state: ServerState, request: Request, fields: ChatFields) -> Response:
    """The next turn of one chat."""
    text = state.replica.text
    asked = await chat_wish(state, fields)
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    form = ChatForm(spelling_of(fields, text), text, logprobs, reader_of(state, fields, asked))
    return await reply(state, request, fields, asked, ChoiceWriter(state, request, fields, form))


async def chat_wish(state: ServerState, fields: ChatFields) -> Wish:
    """What a chat asks of the engine. Raises ApiError."""
    _check(fields)
    more = dict(fields.chat_template_kwargs or {})
    if fields.reasoning_effort is not None:
        more["reasoning_effort"] = fields.reasoning_effort
    tools = None if fields.tool_choice == "none" else fields.tools
    calls = must_call(state, fields)
    generation = fields.add_generation_prompt is not False
    prompt = await chat_prompt(state, fields.messages, tools, generation, more)
    check_tokens(state, prompt, "messages")
    param = "max_tokens" if fields.max_tokens is not None else "max_completion_tokens"
    asked = getattr(fields, param)
    check_room(state, [prompt], 1, "messages")
    room = state.thread.most_tokens - len(prompt)
    check_room(state, [prompt], asked or room, param)
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    sampling = await sampling_of(state, fields, asked or room, logprobs, calls=calls)
    return Wish(
        prompts=[prompt],
        shown=[None],
        answers=fields.answers,
        sampling=after_thought(state, prompt, sampling),
        stops=fields.stops,
        keep_stop=bool(fields.include_stop_str_in_output),
        skip_special=fields.skip_special_tokens is not False and not marked(state, fields),
        priority=fields.priority or 0,
        variant=state.replica.variant(fields.model),
    )


def _check(fields: ChatFields) -> None:
    """Raises ApiError for fields that do not go together."""
    if fields.max_tokens is not None and fields.max_completion_tokens is not None:
        said = "max_tokens is given beside max_completion_tokens, which replaces it; give one"
        raise bad("max_tokens", said)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise bad("top_logprobs", "top_logprobs needs logprobs: true")
