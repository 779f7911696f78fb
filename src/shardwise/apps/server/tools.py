"""Tools of a chat: which calls an answer must have, and those that it has."""

from collections.abc import Callable
from functools import partial
from typing import Any

from shardwise.apps.server.answers import AnswerPart
from shardwise.apps.server.errors import bad
from shardwise.apps.server.fields import ChatFields, NamedTool, ToolFunction
from shardwise.apps.server.state import ServerState
from shardwise.commands.run.serving import AnswerParts, CallPart, CallReader


def must_call(state: ServerState, fields: ChatFields) -> dict[str, Any] | None:
    """The tools of which an answer must call one, as `tool_grammar` takes them. Raises ApiError."""
    choice, functions = fields.tool_choice, [tool.function for tool in fields.tools or ()]
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise bad("tools", "tools: two have one name; a call could not say which is meant")
    if choice in (None, "none", "auto"):
        return None
    if not functions:
        raise bad("tool_choice", "tool_choice: there are no tools to call; give them as tools")
    if isinstance(choice, NamedTool):
        functions = [one for one in functions if one.name == choice.function.name]
        if not functions:
            said = f"tool_choice: there is no tool '{choice.function.name[:100]}' among tools"
            raise bad("tool_choice", said)
    if state.replica.tools is None:
        raise bad(
            "tool_choice",
            "tool_choice: it is not known how this model writes calls; start the server with "
            "--tool-format NAME, or ask with tool_choice: auto",
        )
    return {
        "format": state.replica.tool_format,
        "functions": [_schema(function) for function in functions],
        "parallel": choice == "required" and fields.parallel_tool_calls is not False,
    }


def _schema(function: ToolFunction) -> dict[str, Any]:
    return {"name": function.name, "parameters": function.parameters}


def reader_of(state: ServerState, fields: ChatFields) -> Callable[[], CallReader] | None:
    """What makes a reader of an answer's calls; None where there can be none."""
    row = state.replica.tools
    if row is None or not fields.tools or fields.tool_choice == "none":
        return None
    tools = {tool.function.name: tool.function.parameters for tool in fields.tools}
    return partial(CallReader, row, tools, 1 if fields.parallel_tool_calls is False else None)


def marked(state: ServerState, fields: ChatFields) -> bool:
    """Whether the marks of calls are special tokens, which are to be read here."""
    row = state.replica.tools
    if row is None or reader_of(state, fields) is None:
        return False
    written = row.start + row.end + row.opens + row.middle + row.closes
    return any(mark in written for mark in state.replica.text.special)


def read_part(reader: CallReader | None, piece: AnswerPart) -> AnswerParts:
    """What a piece of an answer says, and what it calls."""
    if reader is None:
        return AnswerParts(text=piece.text)
    return reader.add(piece.text, last=piece.finish is not None)


def call_part(part: CallPart) -> dict[str, Any]:
    """More of a call, as chats have it."""
    function = {"arguments": part.arguments}
    if part.id is None:
        return {"index": part.index, "function": function}
    named = {"name": part.name, **function}
    return {"index": part.index, "id": part.id, "type": "function", "function": named}
