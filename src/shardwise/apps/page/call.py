"""One call of the public API: the same as words of the command line and as a line of Python."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import lru_cache
from inspect import signature
from threading import Event
from typing import Any

import shardwise
from shardwise.apps.page.given import as_named
from shardwise.boundary.commands import listed, spelt
from shardwise.boundary.options import flagged, options_of
from shardwise.commands.base.answer import Answer
from shardwise.commands.base.request import answered

KEPT = 256
"""Answers that are kept, for a slider that comes back."""
LEFT: ContextVar[Event | None] = ContextVar("left", default=None)
"""Set once nobody waits for the answers that are made in this context."""


class LeftError(Exception):
    """Nobody waits for this answer any more, which is not worth its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbCall:
    """A verb with its arguments: those `given` by place, and `keywords`, of which None leaves one
    out and a mapping repeats it."""

    verb: str
    given: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def answer(self) -> Answer:
        """Make it, or remember it. Raises what the verb raises."""
        keywords = tuple((name, _fixed(value)) for name, value in self.used().items())
        return _answered(self.verb, self.given, keywords)

    def used(self) -> dict[str, object]:
        """Keywords that are not left out."""
        return {name: value for name, value in self.keywords.items() if value not in (None, {})}

    def python(self) -> str:
        """The call as Python."""
        words = [repr(value) for value in self.given]
        words += [f"{name}={value!r}" for name, value in self.used().items()]
        return as_named(f"sw.{self.verb}({', '.join(words)})")

    def shell(self) -> str:
        """The call as a command."""
        request = getattr(shardwise, self.verb).request
        rows = options_of(request)
        names = (one.name for one in fields(request) if not one.kw_only)
        named = dict(zip(names, self.given, strict=False)) | self.used()
        places = [value for name, value in named.items() if rows[name].place]
        options = {flagged(n, rows[n]): v for n, v in named.items() if not rows[n].place}
        return as_named(spelt(request.COMMAND, places, options))


def _fixed(value: Any) -> Any:
    """A value that can be looked up; a mapping as NAME=VALUE, which verbs take as well."""
    if isinstance(value, Mapping):
        return tuple(f"{key}={listed(one)}" for key, one in value.items())
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=KEPT)
def _answered(verb: str, given: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...]) -> Answer:
    call = getattr(shardwise, verb)
    asked = call.request(*given, **dict(keywords))  # errors name options as shown
    if call.answer is answered and "progress" in signature(asked.answer).parameters:
        return asked.answer(progress=_heard)
    return call.answer(asked)


def _heard(done: int, total: int) -> None:
    """What a search tells of itself, and where it ends once nobody waits."""
    left = LEFT.get()
    if left is not None and left.is_set():
        raise LeftError
