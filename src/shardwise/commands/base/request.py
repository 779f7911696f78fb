"""A verb of its request: the keywords of a Python function are the fields of a frozen dataclass."""

import re
from collections.abc import Callable
from inspect import Signature, getdoc, signature
from typing import Any, ParamSpec, Protocol, TypeVar

from shardwise.boundary.commands import Command, flags_of, in_keywords
from shardwise.boundary.options import Option, options_of
from shardwise.commands.base.answer import Answer
from shardwise.errors import BadRequest, ShardwiseError, unknown

Given = ParamSpec("Given")
Asked = TypeVar("Asked")
Found = TypeVar("Found", bound=Answer, covariant=True)
Progress = Callable[[int, int], None]
"""Hears how many parts of how many are done."""
Watch = Callable[[str, float], None]
"""Hears what a compiling process is at, and its seconds so far."""


class VerbRequest(Protocol[Found]):
    """Arguments of a verb, as a user writes them; the command line makes the same request."""

    def answer(self) -> Found:
        """Carry it out. Raises BadRequest where it makes no sense."""
        ...


def answered(request: VerbRequest[Found]) -> Found:
    """The answer of a request."""
    return request.answer()


def keywords(request: Any) -> str:
    """What each keyword means, as its option says it: a line `name: sentence` for each. A name that
    ends in _ is quoted, as it were a link in reStructuredText."""
    rows = {name: row for name, row in options_of(request).items() if not row.place}
    text = _in_keywords("\n".join(f"{name}: {_of(row)}" for name, row in rows.items()), request)
    return re.sub(r"(?<![`\w])(\w+_)(?!\w)", r"`\1`", text)


def _of(row: Option) -> str:
    text = row.sentence if row.about[:1] in ("", "[") else row.about
    return f"{text} Or a mapping." if row.kind == "several" and "=" in (row.metavar or "") else text


def verb(
    name: str,
    request: Callable[Given, Asked],
    answer: Callable[[Asked], Found] = answered,  # type: ignore[assignment]
) -> Callable[Given, Found]:
    """The function that makes the request of its arguments and answers it.

    It raises BadRequest for a keyword that there is not, and for one that is missing.
    """
    asked = signature(request).replace(return_annotation=Signature.empty)

    def call(*args: Given.args, **keywords: Given.kwargs) -> Found:
        for keyword in keywords:
            if keyword not in asked.parameters:
                raise unknown(f"keyword of {name}", keyword, asked.parameters)
        try:
            asked.bind(*args, **keywords)
        except TypeError as error:
            raise BadRequest(f"{name}: {error}; help({name}) lists what it takes") from None
        try:
            return answer(request(*args, **keywords))
        except ShardwiseError as error:
            error.args = (_in_keywords(str(error), request),)
            raise

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{getdoc(request)}\n\n{keywords(request)}".rstrip()
    call.__signature__ = asked  # type: ignore[attr-defined]
    call.request = request  # type: ignore[attr-defined]
    call.answer = answer  # type: ignore[attr-defined]
    return call


def _in_keywords(message: str, request: Any) -> str:
    """The message, in which options are keywords of the Python function that was called."""
    is_typed = isinstance(request, type) and issubclass(request, Command)
    return in_keywords(message, flags_of(request)) if is_typed else message
