"""What a chat's answer is read for: its reasoning, and the calls of tools that it must have and
has."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from shardwise.apps.server.answers import AnswerPart, AskedCalls, AskedFunction, Wish
from shardwise.apps.server.documents import CalledFunction, MadeCall
from shardwise.apps.server.errors import bad
from shardwise.apps.server.fields import ChatFields, NamedTool
from shardwise.apps.server.state import ServerState
from shardwise.commands.run.serving import (
    AfterThought,
    AnswerParts,
    AnswerReader,
    CallPart,
    CallReader,
    ChannelReader,
    Constraint,
    Sampling,
    ThoughtReader,
)

TAIL = 16
"""Tokens at the end of a prompt that say whether it has opened or closed the reasoning."""


def must_call(state: ServerState, fields: ChatFields) -> AskedCalls | None:
    """The tools that an answer must choose from. Raises ApiError."""
    choice, functions = fields.tool_choice, [tool.function for tool in fields.tools or ()]
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise bad("tools", "tools: two tools have the same name; rename one")
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
            "tool_choice: the tool-call format of this model is not known; start the server with "
            "--tool-format NAME, or ask with tool_choice: auto",
        )
    return AskedCalls(
        format=state.replica.tool_format,
        functions=[AskedFunction.part_of(function) for function in functions],
        parallel=choice == "required" and fields.parallel_tool_calls is not False,
    )


def reader_of(
    state: ServerState, fields: ChatFields, wish: Wish
) -> Callable[[], AnswerReader] | None:
    """What makes a reader of an answer's reasoning and calls; None where there can be none."""
    row, calls = state.replica.tools, None
    if row is not None and _may_call(fields):
        tools = {tool.function.name: tool.function.parameters for tool in fields.tools or ()}
        most = 1 if fields.parallel_tool_calls is False else None
        calls = partial(CallReader, row, tools, most)
    thoughts = _thoughts(state, fields, wish)
    if calls is None and thoughts is None:
        return None
    shown = fields.include_reasoning is not False
    return lambda: AnswerReader(thoughts and thoughts(), calls and calls(), shown=shown)


def _may_call(fields: ChatFields) -> bool:
    return bool(fields.tools) and fields.tool_choice != "none"


def _thoughts(
    state: ServerState, fields: ChatFields, wish: Wish
) -> Callable[[], ThoughtReader | ChannelReader] | None:
    """What makes a reader of reasoning. An answer that is held to a form from its first token has
    none."""
    row, form = state.replica.thoughts, wish.sampling.form
    if row is None or not (form is None or isinstance(form, AfterThought)):
        return None
    if row.channels:
        return partial(ChannelReader, tools=_may_call(fields))
    return partial(ThoughtReader, row, _begins(state, wish.prompts[0]))


def _begins(state: ServerState, prompt: Sequence[int]) -> bool | None:
    """Whether an answer begins within its reasoning; None: it may."""
    row = state.replica.thoughts
    assert row is not None
    return row.begins(state.replica.text.decode(prompt[-TAIL:], skip_special=False))


def after_thought(state: ServerState, prompt: Sequence[int], sampling: Sampling) -> Sampling:
    """The same, with a form that begins behind the reasoning where the model's marks of that are
    tokens, and the prompt has not closed it."""
    row, form, text = state.replica.thoughts, sampling.form, state.replica.text
    if row is None or not isinstance(form, Constraint):
        return sampling
    opened = _begins(state, prompt)
    end = text.encode(row.end, special=False)
    start = text.inner.token_to_id(row.start)
    if opened is False or end[-1] not in text.inner.get_added_tokens_decoder():
        return sampling
    if opened is None and start is None:
        return sampling
    held = AfterThought(form, start, end, sorted(text.end_ids), opened=bool(opened))
    return replace(sampling, form=held)


def marked(state: ServerState, fields: ChatFields) -> bool:
    """Whether the marks of calls or reasoning are special tokens, which are to be read here."""
    written, row, thoughts = "", state.replica.tools, state.replica.thoughts
    if row is not None and _may_call(fields):
        written += row.start + row.end + row.opens + row.middle + row.closes
    if thoughts is not None:
        written += thoughts.start + thoughts.end
    return bool(written) and any(mark in written for mark in state.replica.text.special)


def read_part(reader: AnswerReader | None, piece: AnswerPart) -> AnswerParts:
    """What a piece of an answer says, and what it calls."""
    if reader is None:
        return AnswerParts(text=piece.text)
    return reader.add(piece.text, piece.offsets, last=piece.finish is not None)


def call_part(part: CallPart) -> MadeCall:
    """More of a call, as chats have it."""
    function = CalledFunction(name=part.name, arguments=part.arguments)
    kind = None if part.id is None else "function"
    return MadeCall(index=part.index, id=part.id, type=kind, function=function)
