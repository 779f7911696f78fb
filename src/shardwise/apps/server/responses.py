"""POST /v1/responses: a conversation as items goes on. It is translated to a chat and back."""

import time
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardwise.apps.server.answers import AnswerPart
from shardwise.apps.server.chat import ChatForm, chat_wish
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
from shardwise.apps.server.reply import Usage, reply
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
    said = {**_said(fields, request.state.request_id), "model": fields.model or state.replica.name}
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


def _said(fields: ResponseFields, request_id: str) -> dict[str, Any]:
    """What a response repeats of its request."""
    asked = fields.model_dump(by_alias=True, exclude_none=True)
    text = asked.get("text") or {}
    return {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None, **(asked.get("reasoning") or {})},
        "store": False,
        "temperature": fields.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "top_p": fields.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": fields.user,
    }


REPORT: Mapping[str, Any] = {"annotations": [], "logprobs": []}
PARTS: Mapping[str, tuple[str, Mapping[str, Any], str, Mapping[str, Any]]] = {
    "message": ("msg", {"role": "assistant"}, "output_text", REPORT),
    "reasoning": ("rs", {"summary": []}, "reasoning_text", {}),
}
"""Items of text: how their ids begin, what they have, their part's type and what it has."""


class ResponseWriter:
    """Writes an answer as items: reasoning, a message, calls. `form` writes it as a chat first."""

    end = b""

    def __init__(self, form: ChatForm, said: dict[str, Any]) -> None:
        self._form, self._response = form, said
        self._events: list[dict[str, Any]] = []
        self._count = 0
        self._items: list[dict[str, Any]] = said["output"]
        self._finish: str | None = None

    def document(self, answers: Sequence[AnswerPart], usage: Usage) -> dict[str, Any]:
        self.part(0, answers[0], usage)
        return self.last(None, usage)[-1]["response"]

    def part(self, index: int, piece: AnswerPart, usage: Usage) -> list[dict[str, Any]]:
        if not self._count:
            self._tell("response.created", response=self._now())
            self._tell("response.in_progress", response=self._now())
        written = self._form.part(index, piece)
        delta, report = written["delta"], written["logprobs"]
        if thought := delta.get("reasoning"):
            self._write("reasoning", thought)
        if delta["content"]:
            self._write("message", delta["content"], report["content"] if report else [])
        for call in delta.get("tool_calls", ()):
            self._call(call)
        if written["finish_reason"]:
            self._finish = written["finish_reason"]
            if not self._items:
                self._write("message", "")
            self._close()
        return self._told()

    def last(self, error: ApiError | None, usage: Usage) -> list[dict[str, Any]]:
        response, counted = self._response, usage()
        response["usage"] = {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._form.thought or 0},
            "total_tokens": counted["total_tokens"],
        }
        response["status"] = "completed"
        if error is not None:
            response["status"] = "failed"
            response["error"] = {"code": "server_error", "message": error.message}
        elif self._finish == "length":
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._tell(f"response.{response['status']}", response=response)
        return self._told()

    def _tell(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, "sequence_number": self._count, **fields})
        self._count += 1

    def _told(self) -> list[dict[str, Any]]:
        told, self._events = self._events, []
        return told

    def _now(self) -> dict[str, Any]:
        return {**self._response, "output": list(self._items)}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _begin(self, kind: str, prefix: str, **fields: Any) -> dict[str, Any]:
        """A new item; the one before it is complete."""
        self._close()
        own = self._response["id"].removeprefix("resp_")
        item = {"type": kind, "id": f"{prefix}_{own}_{len(self._items)}", **fields}
        item["status"] = "in_progress"
        self._items.append(item)
        told = {**item, "content": []} if kind in PARTS else dict(item)
        self._tell("response.output_item.added", output_index=len(self._items) - 1, item=told)
        return item

    def _write(self, kind: str, text: str, logprobs: Sequence[Any] = ()) -> None:
        """More of a message, or of the reasoning."""
        item: dict[str, Any] = self._items[-1] if self._items else {}
        if item.get("status") != "in_progress" or item["type"] != kind:
            prefix, own, made, rest = PARTS[kind]
            part: dict[str, Any] = {"type": made, "text": "", **deepcopy(dict(rest))}
            item = self._begin(kind, prefix, **deepcopy(dict(own)), content=[part])
            told = deepcopy(part)
            self._tell("response.content_part.added", **self._place(), content_index=0, part=told)
        (part,) = item["content"]
        part["text"] += text
        more = {**self._place(), "content_index": 0, "delta": text}
        if "logprobs" in part:
            part["logprobs"] += logprobs
            more["logprobs"] = list(logprobs)
        if text:
            self._tell(f"response.{part['type']}.delta", **more)

    def _call(self, call: Mapping[str, Any]) -> None:
        function = call["function"]
        if "id" in call:
            name = function["name"]
            self._begin("function_call", "fc", call_id=call["id"], name=name, arguments="")
        self._items[-1]["arguments"] += function["arguments"]
        if function["arguments"]:
            more = {**self._place(), "delta": function["arguments"]}
            self._tell("response.function_call_arguments.delta", **more)

    def _close(self) -> None:
        """The last item has ended; whether it is whole."""
        if not self._items or self._items[-1]["status"] != "in_progress":
            return
        item, place = self._items[-1], self._place()
        item["status"] = "incomplete" if self._finish == "length" else "completed"
        if item["type"] in PARTS:
            (part,) = item["content"]
            place["content_index"] = 0
            said = {name: part[name] for name in ("text", "logprobs") if name in part}
            self._tell(f"response.{part['type']}.done", **place, **said)
            self._tell("response.content_part.done", **place, part=part)
        else:
            said = {"arguments": item["arguments"], "name": item["name"]}
            self._tell("response.function_call_arguments.done", **place, **said)
        self._tell("response.output_item.done", output_index=len(self._items) - 1, item=item)
