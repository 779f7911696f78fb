"""One call of the public API: the same as words of the command line and as a line of Python."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import shardwise
from shardwise.boundary.commands import flag_of, listed, spelt
from shardwise.commands.base.answer import Answer

KEPT = 256
"""Answers that are kept, for a slider that comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbCall:
    """A verb with its arguments: `given` stand first in the command, `keywords` are options; None
    leaves one out, a mapping repeats it."""

    verb: str
    command: str
    given: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    """Options that Python takes by place, in front of the others: `--model`, `--on`."""

    def answer(self) -> Answer:
        """Make it, or remember it. Raises what the verb raises."""
        keywords = tuple((name, _fixed(value)) for name, value in self.used().items())
        return _answered(self.verb, self.given, keywords)

    def used(self) -> dict[str, Any]:
        """Keywords that are not left out."""
        return {name: value for name, value in self.keywords.items() if value not in (None, {})}

    def python(self) -> str:
        """The call as Python."""
        words = [repr(value) for value in self.given]
        words += [f"{name}={value!r}" for name, value in self.used().items()]
        return f"sw.{self.verb}({', '.join(words)})"

    def shell(self) -> str:
        """The call as a command."""
        named = dict(zip(self.first, self.given, strict=False)) | self.used()
        options = {flag_of(name): value for name, value in named.items()}
        return spelt(self.command, self.given[len(self.first) :], options)


def _fixed(value: Any) -> Any:
    """A value that can be looked up; a mapping as NAME=VALUE, which verbs take as well."""
    if isinstance(value, Mapping):
        return tuple(f"{key}={listed(one)}" for key, one in value.items())
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=KEPT)
def _answered(verb: str, given: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...]) -> Answer:
    call = getattr(shardwise, verb)
    return call.answer(call.request(*given, **dict(keywords)))  # errors name options as shown
