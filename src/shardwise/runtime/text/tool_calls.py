"""The calls of tools in a model's answer, read while it comes.

What is no call stays text: an object that does not end, one without a name, a mark that nothing
follows. The formats are those of `tool_formats.py`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from shardwise.runtime.text.answer_text import begun
from shardwise.runtime.text.tool_formats import OBJECT, ToolFormat, is_text

AROUND = " \n\t\r,;]"
"""What may stand between calls and after them, as models write it."""
LONGEST_HEAD = 300
"""Letters before the arguments of a call, its name included."""


@dataclass(slots=True, kw_only=True)
class CallPart:
    """More of call number `index`: its `id` and `name` at its beginning, then its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class AnswerParts:
    """Text that is for the reader, and what there is more of calls, one part for each call, and of
    reasoning."""

    text: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)


class ObjectEnd:
    """Finds where a JSON object ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False

    def find(self, text: str) -> int:
        """The place behind its end in this piece; -1 while it goes on."""
        for place, letter in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    return place + 1
        return -1


class CallReader:
    """Text of one answer in, text and calls out. `tools` are the parameters of functions by name;
    only the first `most` calls are given."""

    def __init__(
        self,
        row: ToolFormat,
        tools: Mapping[str, Mapping[str, Any] | None],
        most: int | None = None,
    ) -> None:
        self._row, self._tools, self._most = row, tools, most
        self._header = row.header
        self._start, self._end = row.start.rstrip(" \n["), row.end.lstrip(" \n]")
        self._tail = row.closes.strip()
        self._around = AROUND + "[" * row.start.endswith("[")
        self._left = ""  # what has come and is not decided
        self._raw = ""  # what was taken for the beginning of a group of calls
        self._state = self._first if row.bare else self._text
        self._object, self._scanned = ObjectEnd(), 0
        self._found = AnswerParts()
        self.count = 0
        """Calls so far."""

    def add(self, text: str, *, last: bool = False) -> AnswerParts:
        """What is certain now and was not before; with the `last` text also what was held back."""
        self._left += text
        self._found = AnswerParts()
        while self._left and self._state(last):
            pass
        unread = self._state in (self._first, self._calls)
        if last and unread and (not self.count or self._raw or self._left.strip(self._around)):
            self._show(self._raw + self._left)
        return self._found

    # Each state takes what it can of what is left, and says whether there may be more to take.

    def _first(self, last: bool) -> bool:
        """The beginning of an answer, which may be a call without a mark."""
        if self._left.isspace():
            return False
        bare = self._left.lstrip().startswith("{")
        self._state = self._calls if bare else self._text
        return True

    def _text(self, last: bool) -> bool:
        """Outside of calls: text as far as no call begins in it."""
        at = self._left.find(self._start) if self._start else -1
        if at >= 0:
            shown, at = self._left[:at].rstrip(), at + len(self._start)
            self._show(shown)
            self._raw, self._left = self._left[len(shown) : at], self._left[at:]
            self._state = self._calls
            return True
        cut = len(self._left)
        if not last:
            cut = begun(self._left, self._start) if self._start else cut
            cut = len(self._left[:cut].rstrip())  # no space before a call is shown
        shown, self._left = self._left[:cut], self._left[cut:]
        self._show(shown)
        return False

    def _calls(self, last: bool) -> bool:
        """Within a group of calls: the head of the next one, or the group's end."""
        rest = self._left.lstrip(self._around)
        if not rest:
            return False
        if self._end and not self._raw:
            if rest.startswith(self._end):
                self._left, self._state = rest[len(self._end) :], self._text
                return True
            if self._end.startswith(rest) and not last:
                return False
        if head := self._header.match(rest):
            return self._begin(head["name"], rest, head.end(), last)
        if self._row.opens == OBJECT and rest.startswith("{"):
            return self._whole(rest, last)
        return False if self._may_open(rest) and not last else self._no_call()

    def _may_open(self, rest: str) -> bool:
        """Whether the head of a call that is no object may yet become whole."""
        opens = self._row.opens.strip()
        if self._row.opens == OBJECT or len(rest) > LONGEST_HEAD:
            return False
        if self._end and self._end in rest:
            return False
        return rest.startswith(opens) or opens.startswith(rest)

    def _no_call(self) -> bool:
        if not self._raw and self.count:
            self._left = self._left.lstrip(self._around)
        self._show(self._raw)
        self._raw, self._scanned, self._state = "", 0, self._text
        return True

    def _begin(self, name: str, rest: str, size: int, last: bool) -> bool:
        if not self._raw and not self.count and name not in self._tools:
            return self._no_call()
        if self._row.tags is not None:
            at = rest.find(self._tail or self._end, size)
            if at < 0:
                return self._no_call() if last else False
            self._left = rest[at:]
            return self._call(name, self._tagged(name, rest[size:at]), self._closing)
        self._left, self._object = rest[size:], ObjectEnd()
        return self._call(name, "", self._arguments)

    def _call(self, name: str, arguments: str, then: Callable[[bool], bool]) -> bool:
        identity = self._row.ids.format(drawn=uuid4().hex)
        self.count += 1
        self._note(CallPart(index=self.count - 1, id=identity, name=name, arguments=arguments))
        self._raw, self._scanned, self._state = "", 0, then
        return True

    def _arguments(self, last: bool) -> bool:
        """More of the arguments of the call that has begun."""
        at = self._object.find(self._left)
        size = len(self._left) if at < 0 else at
        self._note(CallPart(index=self.count - 1, arguments=self._left[:size]))
        self._left = self._left[size:]
        self._state = self._arguments if at < 0 else self._closing
        return at >= 0

    def _closing(self, last: bool) -> bool:
        """What a call closes with."""
        rest = self._left.lstrip()
        if len(rest) < len(self._tail) and self._tail.startswith(rest) and not last:
            return False
        self._left = rest.removeprefix(self._tail)
        alone = self._row.between is None and not self._end
        self._state = self._text if alone else self._calls
        return True

    def _whole(self, rest: str, last: bool) -> bool:
        """A call whose name is not its first part, once all of it is there."""
        if rest != self._left:
            self._raw += self._left[: -len(rest)]
            self._left = rest
        if not self._scanned:
            self._object = ObjectEnd()
        at = self._object.find(rest[self._scanned :])
        if at < 0:
            self._scanned = len(rest)
            return self._no_call() if last else False
        at += self._scanned
        name, arguments = _parts(rest[:at])
        if not name or (self._row.bare and name not in self._tools):
            return self._no_call()
        self._left = rest[at:]
        return self._call(name, arguments, self._calls)

    def _tagged(self, name: str, text: str) -> str:
        """Arguments in tags as JSON: texts by the function's schema, others as they are written."""
        tags = self._row.tags
        assert tags is not None
        schemas = (self._tools.get(name) or {}).get("properties") or {}
        found: dict[str, Any] = {}
        for part in text.split(tags.opens)[1:]:
            key, _, value = part.partition(tags.middle.strip())
            value = value.rpartition(tags.closes.strip())[0] or value
            found[key.strip()] = _value(
                value.removeprefix("\n").removesuffix("\n"), schemas.get(key)
            )
        return json.dumps(found, ensure_ascii=False)

    def _show(self, text: str) -> None:
        if not (self.count and text.isspace()):
            self._found.text += text

    def _note(self, part: CallPart) -> None:
        calls = self._found.calls
        if self._most is not None and part.index >= self._most:
            return
        if calls and calls[-1].index == part.index:
            calls[-1].arguments += part.arguments
        else:
            calls.append(part)


def _parts(text: str) -> tuple[str, str]:
    """Name and arguments of a call as one object; an empty name where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "", ""
    name, arguments = found.get("name"), found.get("arguments", found.get("parameters", {}))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return (name if isinstance(name, str) else ""), written


def _value(text: str, schema: Any) -> Any:
    """A parameter that stood between tags."""
    if is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
