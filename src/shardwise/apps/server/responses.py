"""POST /v1/responses: a conversation as items goes on. It is translated to a chat and back."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardwise.apps.server.answers import AnswerPart
from shardwise.apps.server.chat import ChatForm, chat_wish
from shardwise.apps.server.documents import (
    CallOutput,
    ContentPart,
    Incomplete,
    MadeCall,
    ResponseDocument,
    ResponseEvent,
    ResponseFault,
    ResponseUsage,
    SentItem,
    SpeltToken,
    TextItem,
    ThoughtTokens,
)
from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.fields import (
    CallItem,
    ChatFields,
    FunctionCall,
    Item,
    JsonSchema,
    Message,
    MessageItem,
    NamedFunction,
    NamedResponseTool,
    NamedTool,
    OutputItem,
    ResponseFields,
    ResponseFormat,
    ResponseTool,
    SamplingFields,
    TextFormat,
    Texts,
    Tool,
    ToolCall,
    ToolFunction,
)
from shardwise.apps.server.reply import Counted, reply
from shardwise.apps.server.reports import spelling_of
from shardwise.apps.server.state import ServerState
from shardwise.apps.server.tools import reader_of

LOGPROBS = "message.output_text.logprobs"


async def respond(state: ServerState, request: Request, fields: ResponseFields) -> Response:
    """The next items of one conversation."""
    asked = chat_of(fields)
    try:
        wish = await chat_wish(state, asked)
    except ApiError as error:
        error.param = NAMES.get(error.param or "", error.param)
        raise
    text = state.replica.text
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    form = ChatForm(spelling_of(asked, text), text, logprobs, reader_of(state, asked, wish))
    said = _said(fields, request.state.request_id, fields.model or state.replica.name)
    return await reply(state, request, fields, wish, ResponseWriter(form, said))


NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
}
"""Fields of responses, by those of chats that they become."""


def chat_of(fields: ResponseFields) -> ChatFields:
    """The chat that a body asks for. Raises ApiError."""
    choice, form = fields.tool_choice, None if fields.text is None else fields.text.format
    if isinstance(choice, NamedResponseTool):
        choice = NamedTool(type="function", function=NamedFunction(name=choice.name))
    return ChatFields.model_construct(
        **{name: getattr(fields, name) for name in SamplingFields.model_fields},
        messages=list(_messages(fields)),
        max_completion_tokens=fields.max_output_tokens,
        tools=None if fields.tools is None else list(map(_tool, fields.tools)),
        tool_choice=choice,
        parallel_tool_calls=fields.parallel_tool_calls,
        response_format=None if form is None else _form(form),
        reasoning_effort=None if fields.reasoning is None else fields.reasoning.effort,
        logprobs=LOGPROBS in (fields.include or ()),
        top_logprobs=fields.top_logprobs,
    )


def _tool(tool: ResponseTool) -> Tool:
    own = {name: getattr(tool, name) for name in ToolFunction.model_fields}
    return Tool(type="function", function=ToolFunction(**own))


def _form(form: TextFormat) -> ResponseFormat:
    if form.type != "json_schema":
        return ResponseFormat(type=form.type)
    if form.json_schema is None:
        raise bad("text", "text.format has no schema; give one")
    return ResponseFormat(type=form.type, json_schema=JsonSchema(schema=form.json_schema))


def _messages(fields: ResponseFields) -> Iterable[Message]:
    """The turns of a conversation; calls in a row are one."""
    if fields.instructions:
        yield _message(role="system", content=fields.instructions)
    if isinstance(fields.input, str):
        yield _message(role="user", content=fields.input)
        return
    calls: list[ToolCall] = []
    text: str | None = None
    for item in [*fields.input, None]:
        if isinstance(item, CallItem):
            function = FunctionCall(name=item.name, arguments=item.arguments)
            calls.append(ToolCall(id=item.call_id, function=function))
            continue
        if calls or text is not None:
            yield _message(role="assistant", content=text, tool_calls=calls or None)
            calls, text = [], None
        if isinstance(item, MessageItem) and item.role == "assistant":
            text = _text(item.content)
        elif item is not None:
            yield from _turn(item)


def _turn(item: Item) -> Iterable[Message]:
    if isinstance(item, MessageItem):
        yield _message(role=item.role, content=_text(item.content))
    elif isinstance(item, OutputItem):
        yield _message(role="tool", tool_call_id=item.call_id, content=_text(item.output))


def _message(**fields: Any) -> Message:
    return Message(**fields)


def _text(content: Texts) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _said(fields: ResponseFields, request_id: str, model: str) -> ResponseDocument:
    """What a response repeats of its request."""
    asked = fields.model_dump(by_alias=True, exclude_none=True)
    text = asked.get("text") or {}
    return ResponseDocument(
        id=f"resp_{request_id}",
        created_at=int(time.time()),
        instructions=fields.instructions,
        max_output_tokens=fields.max_output_tokens,
        metadata=fields.metadata or {},
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        reasoning={"effort": None, "summary": None, **(asked.get("reasoning") or {})},
        temperature=fields.temperature,
        text={"format": {"type": "text"}, **text},
        tool_choice=asked.get("tool_choice", "auto"),
        tools=asked.get("tools", ()),
        top_p=fields.top_p,
        user=fields.user,
        model=model,
    )


@dataclass(slots=True)
class OpenItem:
    """An item while it comes: text or arguments in `said`, and what is reported of their tokens."""

    item: SentItem
    said: str = ""
    report: list[SpeltToken] = field(default_factory=list)

    @property
    def part(self) -> ContentPart:
        """The one part of an item of text."""
        if self.item.type == "reasoning":
            return ContentPart(type="reasoning_text", text=self.said)
        report = tuple(self.report)
        return ContentPart(type="output_text", text=self.said, annotations=(), logprobs=report)

    def ended(self, status: str) -> SentItem:
        """The item as it is in the response."""
        if isinstance(self.item, TextItem):
            return replace(self.item, content=(self.part,), status=status)
        return replace(self.item, arguments=self.said, status=status)


class ResponseWriter:
    """Writes an answer as items: reasoning, a message, calls. `form` writes it as a chat first."""

    end = b""

    def __init__(self, form: ChatForm, said: ResponseDocument) -> None:
        self._form, self._response = form, said
        self._events: list[ResponseEvent] = []
        self._count = 0
        self._items: list[SentItem] = []
        self._open: OpenItem | None = None
        self._finish: str | None = None

    def document(self, answers: Sequence[AnswerPart], usage: Counted) -> ResponseDocument:
        self.part(0, answers[0], usage)
        return self._ended(None, usage)

    def part(self, index: int, piece: AnswerPart, usage: Counted) -> list[ResponseEvent]:
        if not self._count:
            self._tell("response.created", response=self._response)
            self._tell("response.in_progress", response=self._response)
        written = self._form.part(index, piece)
        delta = written.delta
        if delta.reasoning:
            self._write("reasoning", delta.reasoning)
        if delta.content:
            report = written.logprobs
            self._write("message", delta.content, report.content if report else ())
        for call in delta.tool_calls or ():
            self._call(call)
        if written.finish_reason:
            self._finish = written.finish_reason
            if not self._place:
                self._write("message", "")
            self._close()
        return self._told()

    def last(self, error: ApiError | None, usage: Counted) -> list[ResponseEvent]:
        response = self._ended(error, usage)
        self._tell(f"response.{response.status}", response=response)
        return self._told()

    def _ended(self, error: ApiError | None, usage: Counted) -> ResponseDocument:
        counted = usage()
        assert counted.prompt_tokens_details is not None
        thought = ThoughtTokens(reasoning_tokens=self._form.thought or 0)
        spent = ResponseUsage(
            input_tokens=counted.prompt_tokens,
            input_tokens_details=counted.prompt_tokens_details,
            output_tokens=counted.completion_tokens or 0,
            output_tokens_details=thought,
            total_tokens=counted.total_tokens,
        )
        items = [*self._items, *([self._open.ended("in_progress")] if self._open else [])]
        response = replace(self._response, output=items, usage=spent, status="completed")
        if error is not None:
            fault = ResponseFault(code="server_error", message=error.message)
            return replace(response, status="failed", error=fault)
        if self._finish == "length":
            why = Incomplete(reason="max_output_tokens")
            return replace(response, status="incomplete", incomplete_details=why)
        return response

    def _tell(self, kind: str, **fields: Any) -> None:
        self._events.append(ResponseEvent(type=kind, sequence_number=self._count, **fields))
        self._count += 1

    def _tell_of(self, kind: str, **fields: Any) -> None:
        """An event of the item that is open."""
        assert self._open is not None
        own, place = self._open.item, self._place - 1
        index = 0 if isinstance(own, TextItem) else None
        self._tell(kind, item_id=own.id, output_index=place, content_index=index, **fields)

    def _told(self) -> list[ResponseEvent]:
        told, self._events = self._events, []
        return told

    @property
    def _place(self) -> int:
        """Items so far."""
        return len(self._items) + (self._open is not None)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._response.id.removeprefix('resp_')}_{self._place}"

    def _begin(self, item: SentItem) -> OpenItem:
        """A new item, behind those that are complete."""
        self._open = OpenItem(item)
        self._tell("response.output_item.added", output_index=self._place - 1, item=item)
        return self._open

    def _write(self, kind: str, text: str, report: Sequence[SpeltToken] = ()) -> None:
        """More of a message, or of the reasoning."""
        found = self._open
        if found is None or found.item.type != kind:
            self._close()
            if kind == "message":
                item = TextItem(type=kind, id=self._id("msg"), role="assistant")
            else:
                item = TextItem(type=kind, id=self._id("rs"), summary=())
            found = self._begin(item)
            self._tell_of("response.content_part.added", part_=found.part)
        found.said += text
        found.report += report
        if text:
            more = {"logprobs": report} if kind == "message" else {}
            self._tell_of(f"response.{found.part.type}.delta", delta=text, **more)

    def _call(self, call: MadeCall) -> None:
        more = call.function.arguments
        if call.id is not None:
            self._close()
            name = call.function.name
            self._begin(CallOutput(id=self._id("fc"), call_id=call.id, name=name))
        assert self._open is not None
        self._open.said += more
        if more:
            self._tell_of("response.function_call_arguments.delta", delta=more)

    def _close(self) -> None:
        """The last item has ended; whether it is whole."""
        if self._open is None:
            return
        found, item = self._open, self._open.item
        if isinstance(item, TextItem):
            part = found.part
            said = {"text": part.text, "logprobs": part.logprobs}
            self._tell_of(f"response.{part.type}.done", **said)
            self._tell_of("response.content_part.done", part_=part)
        else:
            said = {"arguments": found.said, "name": item.name}
            self._tell_of("response.function_call_arguments.done", **said)
        whole = found.ended("incomplete" if self._finish == "length" else "completed")
        self._open = None
        self._items.append(whole)
        self._tell("response.output_item.done", output_index=self._place - 1, item=whole)
