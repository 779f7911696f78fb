"""What a model thinks before it answers: a row for each way to mark it, read while it comes.

The rows stand in `data/formats.toml`; their names are those of vLLM's `--reasoning-parser`.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np

from shardwise.runtime.text.answer_text import begun
from shardwise.runtime.text.grammar import Constraint
from shardwise.runtime.text.template import ChatTemplate
from shardwise.runtime.text.tool_calls import AnswerParts, CallPart, CallReader
from shardwise.runtime.text.tool_formats import read_formats


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """Reasoning stands between `start` and `end`, at the beginning of an answer. A template that
    has all `marks` asks for it. `opened`: an answer begins within it without `start`, unless the
    prompt has closed it. `channels`: an answer is messages with headers, which say what they are;
    what is no reasoning begins with `end`."""

    marks: tuple[str, ...]
    start: str = "<think>"
    end: str = "</think>"
    opened: bool = False
    channels: bool = False

    def begins(self, prompt_end: str) -> bool | None:
        """Whether an answer begins within reasoning, by the end of its prompt; None where it may
        begin with `start`."""
        tail = prompt_end.rstrip()
        if tail.endswith(self.end.strip()):
            return False
        return True if self.opened or tail.endswith(self.start.strip()) else None


REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    name: ReasoningFormat(**row) for name, row in read_formats("reasoning").items()
}
"""By name; of those whose marks a template has the first one is its own."""
NO_REASONING = "none"


def reasoning_format(name: str | None, template: ChatTemplate | None) -> str:
    """The name of a format: the one given, else the one that a template asks for."""
    if name is not None:
        return name
    text = "" if template is None else template.text
    rows = REASONING_FORMATS.items()
    return next((n for n, row in rows if all(mark in text for mark in row.marks)), NO_REASONING)


class ThoughtReader:
    """Text of one answer in; reasoning and text apart out. `opened` is what
    `ReasoningFormat.begins` says."""

    def __init__(self, row: ReasoningFormat, opened: bool | None) -> None:
        self._start, self._end = row.start.strip(), row.end.strip()
        self._opened = opened
        self._inside: bool | None = False if opened is False else None
        """None: it is not decided yet whether `start` comes first."""
        self._left, self._seen = "", 0
        self._begun = True
        """Whether nothing but space has come of the reasoning, or of the text behind it."""
        self.thought = 0
        """Letters of the answer up to the end of its reasoning."""

    def add(self, text: str, *, last: bool = False) -> AnswerParts:
        """What is certain now and was not before; with the `last` text also what was held back."""
        self._left, self._seen = self._left + text, self._seen + len(text)
        found = AnswerParts()
        if self._inside is None and not self._decide(last):
            return found
        if self._inside:
            found.reasoning = self._think(last)
        if not self._inside:
            found.text, self._left = self._left, ""
            if self.thought and self._begun:
                found.text = found.text.lstrip()
                self._begun = not found.text
        return found

    def _decide(self, last: bool) -> bool:
        """Whether it is known now how the answer begins."""
        rest = self._left.lstrip()
        if rest.startswith(self._start):
            self._inside, self._left = True, rest[len(self._start) :]
            return True
        if self._start.startswith(rest) and not last:
            return False
        self._inside = bool(self._opened)
        return True

    def _think(self, last: bool) -> str:
        """More of the reasoning, without the space around it."""
        if self._begun:
            self._left = self._left.lstrip()
            self._begun = not self._left
        at = self._left.find(self._end)
        if at >= 0:
            found, self._left = self._left[:at].rstrip(), self._left[at + len(self._end) :]
            self._inside, self._begun = False, True
        else:
            cut = len(self._left) if last else begun(self._left, self._end)
            cut = len(self._left[:cut].rstrip())
            found, self._left = self._left[:cut], self._left[cut:]
        self.thought = self._seen - (0 if self._inside else len(self._left))
        return found


CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
MESSAGE = "<|message|>"
ENDS = ("<|end|>", "<|start|>", "<|call|>", "<|return|>")
LONGEST_HEADER = 300
"""Letters before a message; what goes on without one is text."""


class ChannelReader:
    """The same for an answer of several messages: those of the channel `analysis` are reasoning,
    those to a function its calls (text where there are no `tools`), all others text."""

    def __init__(self, *, tools: bool) -> None:
        self._tools, self._left, self._seen = tools, "", 0
        self._kind: str | None = None
        """Of the message under way; None within its header."""
        self._found = AnswerParts()
        self._joint = ""
        self.thought = self.count = 0

    def add(self, text: str, *, last: bool = False) -> AnswerParts:
        """What is certain now and was not before; with the `last` text also what was held back."""
        self._left, self._seen = self._left + text, self._seen + len(text)
        self._found = AnswerParts()
        while self._left and (self._header(last) if self._kind is None else self._body(last)):
            pass
        return self._found

    def _header(self, last: bool) -> bool:
        head, mark, rest = self._left.partition(MESSAGE)
        if not mark:
            plain = not _opens(head) or len(head) > LONGEST_HEADER
            self._kind = "text" if plain or (last and "<|channel|>" not in head) else None
            return self._kind is not None
        channel, to = CHANNEL.search(head), RECIPIENT.search(head)
        self._kind = "reasoning" if channel and channel[1] == "analysis" else "text"
        if to and self._tools:
            self._kind = "call"
            call = CallPart(index=self.count, id=f"call_{uuid4().hex[:24]}", name=to[1])
            self._found.calls.append(call)
            self.count += 1
        self._left = rest
        return True

    def _body(self, last: bool) -> bool:
        places = [(at, end) for end in ENDS if (at := self._left.find(end)) >= 0]
        at, end = min(places, default=(-1, ""))
        cut = at if places else len(self._left) if last else min(begun(self._left, e) for e in ENDS)
        self._give(self._left[:cut])
        self._left = self._left[cut + len(end) :]
        if self._kind == "reasoning":
            self.thought = self._seen - len(self._left)
            self._joint = "\n" if places else self._joint
        if places:
            self._kind = None
        return bool(places)

    def _give(self, text: str) -> None:
        if self._kind == "text":
            self._found.text += text
        elif self._kind == "reasoning" and text:
            self._found.reasoning += self._joint + text
            self._joint = ""
        elif text and self._found.calls and self._found.calls[-1].index == self.count - 1:
            self._found.calls[-1].arguments += text
        elif text:
            self._found.calls.append(CallPart(index=self.count - 1, arguments=text))


def _opens(text: str) -> bool:
    """Whether it may be the header of a message."""
    text = text.lstrip()
    marks = ("<|channel|>", "<|start|>", "assistant", "to=functions.")
    return any(text.startswith(mark[: len(text)]) for mark in marks)


class AnswerReader:
    """Text of one answer in; reasoning (where it is `shown`), text and calls out."""

    def __init__(
        self,
        thoughts: ThoughtReader | ChannelReader | None,
        calls: CallReader | None,
        *,
        shown: bool = True,
    ) -> None:
        self._thoughts, self._calls = thoughts, calls
        self.thinks = thoughts is not None and shown
        """Whether reasoning is given."""
        self._offsets: list[int] = []

    @property
    def count(self) -> int:
        """Calls so far."""
        reader = self._thoughts if isinstance(self._thoughts, ChannelReader) else self._calls
        return 0 if reader is None else reader.count

    @property
    def tokens(self) -> int | None:
        """Those of reasoning; None where none is read."""
        return self._thoughts and bisect_left(self._offsets, self._thoughts.thought)

    def add(self, text: str, offsets: Sequence[int] = (), *, last: bool = False) -> AnswerParts:
        """What is certain now; `offsets` say where the tokens that came begin in the answer."""
        found = AnswerParts(text=text)
        if self._thoughts is not None:
            self._offsets += offsets
            found = self._thoughts.add(text, last=last)
            found.reasoning = found.reasoning if self.thinks else ""
        if self._calls is not None:
            said = self._calls.add(found.text, last=last)
            found.text, found.calls = said.text, said.calls
        return found


class AfterThought:
    """A form that begins behind the reasoning. `start` is the token that opens it where the prompt
    has not (`opened`), `end` the tokens that close it; until then every token may come but those
    that end an answer."""

    def __init__(
        self,
        form: Constraint,
        start: int | None,
        end: Sequence[int],
        end_ids: Sequence[int],
        *,
        opened: bool,
    ) -> None:
        self._form, self._start, self._end, self._end_ids = form, start, end, end_ids
        self._free, self._fresh = opened, not opened
        self._tail: list[int] = []

    def fresh(self) -> "AfterThought":
        """The same, for another answer, from its beginning."""
        opened = not self._fresh
        return AfterThought(
            self._form.fresh(), self._start, self._end, self._end_ids, opened=opened
        )

    def allowed(self) -> Any:
        """A bit for every token of the vocabulary."""
        bits_W = self._form.allowed()
        if self._free:
            bits_W = np.full_like(bits_W, 0xFFFFFFFF)
            for token in self._end_ids:
                bits_W[token // 32] &= ~np.uint32(1 << token % 32)
        elif self._fresh and self._start is not None:
            bits_W = bits_W.copy()
            bits_W[self._start // 32] |= np.uint32(1 << self._start % 32)
        return bits_W

    def take(self, token: int) -> str:
        """Go on by a token; what is wrong with that, if anything is."""
        first, self._fresh = self._fresh, False
        if self._free:
            self._tail = [*self._tail, token][-len(self._end) :]
            self._free = self._tail != list(self._end)
            return ""
        if first and token == self._start:
            self._free = True
            return ""
        return self._form.take(token)

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return not self._free and self._form.complete

    @property
    def done(self) -> bool:
        """Whether the form is complete and nothing can follow."""
        return not self._free and self._form.done
