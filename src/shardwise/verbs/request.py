"""A verb of its request: the keywords of a Python function are the fields of a frozen dataclass."""

from collections.abc import Callable
from inspect import Signature, signature
from typing import ParamSpec, Protocol, TypeVar

from shardwise.verbs.answer import Answer

Given = ParamSpec("Given")
Asked = TypeVar("Asked")
Found = TypeVar("Found", bound=Answer, covariant=True)
Progress = Callable[[int, int], None]
"""Hears how many parts of how many are done."""


class VerbRequest(Protocol[Found]):
    """What a verb is asked, in the words of a person; the command line makes the same."""

    def answer(self) -> Found:
        """Carry it out. Raises BadRequest where it makes no sense."""
        ...


def answered(request: VerbRequest[Found]) -> Found:
    """The answer of a request."""
    return request.answer()


def verb(
    name: str,
    request: Callable[Given, Asked],
    answer: Callable[[Asked], Found] = answered,  # type: ignore[assignment]
) -> Callable[Given, Found]:
    """The function that makes the request of its arguments and answers it."""

    def call(*args: Given.args, **keywords: Given.kwargs) -> Found:
        return answer(request(*args, **keywords))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = request.__doc__
    asked = signature(request).replace(return_annotation=Signature.empty)
    call.__signature__ = asked  # type: ignore[attr-defined]
    return call
