"""What pydantic finds wrong with a value, in our words: what the value must be.

Every reader that checks types with pydantic makes its message of these, so that nobody who writes a
plan, a table or a request meets the words of a library.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Made = TypeVar("Made")
Fault = Mapping[str, Any]
"""One error of pydantic, as its `errors()` gives it."""

_WHOLE, _NUMBER, _SWITCH, _TEXT = "a whole number", "a number", "true or false", "text"
_LIST, _TABLE = "a list, such as [2, 4]", "a mapping of keys to values, such as {key: value}"
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), _WHOLE),
    "int_parsing_size": "a whole number of fewer digits",
    **dict.fromkeys(("float_type", "float_parsing"), _NUMBER),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), _SWITCH),
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode"), _TEXT),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), _LIST),
    "iterable_type": _LIST,
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), _TABLE),
    **dict.fromkeys(("dataclass_type", "dataclass_exact_type"), _TABLE),
    "none_required": "left out",
    "missing": "given",
}
"""By kind of error what the value must be, where that is all there is to say."""
_LIMITS: Mapping[str, Callable[[Fault], str]] = {
    "greater_than_equal": lambda limit: f"at least {_figure(limit['ge'])}",
    "greater_than": lambda limit: f"above {_figure(limit['gt'])}",
    "less_than_equal": lambda limit: f"at most {_figure(limit['le'])}",
    "less_than": lambda limit: f"below {_figure(limit['lt'])}",
    "too_short": lambda limit: f"a list of at least {limit['min_length']}",
    "too_long": lambda limit: f"a list of at most {limit['max_length']}",
    "string_too_short": lambda limit: f"text of at least {_characters(limit['min_length'])}",
    "string_too_long": lambda limit: f"text of at most {_characters(limit['max_length'])}",
    "string_pattern_mismatch": lambda limit: f"text of the form {limit['pattern']}",
    "literal_error": lambda limit: limit["expected"],
    "value_error": lambda limit: str(limit["error"]),
}
"""By kind of error what the value must be, from the limit that it broke."""


def record_of(kind: type[Made], value: object) -> Made:
    """Plain values, as of a document, as the dataclass `kind` with those in it. Raises ValueError
    where a key is missing, or its value is of another type."""
    from pydantic import TypeAdapter  # slow to load

    return TypeAdapter(kind).validate_python(value)


def must_be(*errors: Fault) -> str:
    """What the value of an error must be, as the end of "it must be"; of several errors of one
    value, which may be of several types, any of it.

    >>> must_be({"type": "int_parsing"}), must_be({"type": "less_than", "ctx": {"lt": 7}})
    ('a whole number', 'below 7')
    """
    return " or ".join(dict.fromkeys(map(_must_be, errors)))


def _must_be(error: Fault) -> str:
    kind = error["type"]
    if kind in _LIMITS:
        return _LIMITS[kind](error["ctx"]).removeprefix("must be ")
    return _KINDS.get(kind, "a value of another type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """The first value of a document that pydantic refuses: its dotted place, "" for the document,
    and all errors about it. With `names` they are about the name of a mapping's key."""

    place: str
    errors: tuple[Fault, ...]
    names: bool

    @property
    def missing(self) -> bool:
        """Whether it is not there."""
        return self.errors[0]["type"] == "missing"

    @property
    def value(self) -> Any:
        """What stands there."""
        return self.errors[0]["input"]

    @property
    def must_be(self) -> str:
        """What must stand there, as the end of "it must be"."""
        return must_be(*self.errors)

    @property
    def choices(self) -> list[str]:
        """The words of the closed set that it must be one of; none where it is no such."""
        told = [error.get("ctx", {}).get("expected", "") for error in self.errors]
        return re.findall("'([^']*)'", " ".join(map(str, told)))


def first_mistake(errors: Sequence[Any], document: Any) -> Mistake:
    """The first mistake in a document, of pydantic's errors about it."""
    place = _place(errors[0], document)
    mine = tuple(error for error in errors if _place(error, document) == place)
    return Mistake(
        place=".".join(map(str, place)),
        errors=mine,
        names="[key]" in errors[0]["loc"][len(place) :],
    )


def _place(error: Fault, document: Any) -> tuple[Any, ...]:
    """The part of an error's place that is one of the document: pydantic adds the types tried."""
    found = []
    for part in error["loc"]:
        if (isinstance(document, Mapping) and part in document) or (
            isinstance(document, list | tuple) and isinstance(part, int) and part < len(document)
        ):
            document = document[part]
        elif error["type"] != "missing":
            break
        found.append(part)
    return tuple(found)


def _figure(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _characters(count: int) -> str:
    return f"{count:,} character" + "s" * (count != 1)
