"""Records: frozen dataclasses that are documents as they stand.

A result is written once, as fields with their types, each with its meaning and unit in the string
below it. `plain` makes the document of it, `shardwise schema` the JSON Schema, and Python reads the
fields. A field made by `part` is left out of the document where it is None: only some answers have
it. One made by `hidden` is for pages and charts, and no part of the document. An underscore at the
end of a name, which Python's own words need, is no part of its key.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self

_PART, _HIDDEN = "part", "hidden"
Unbounded = Annotated[float, "null where it is infinite"]
"""A number that may be infinite, which JSON has not: a document has null then, and a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A frozen dataclass that is a document, or a piece of one."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    """How pydantic makes a schema of it: the strings below fields are their descriptions."""

    @classmethod
    def of(cls, base: "Record", **more: Any) -> Self:
        """The fields of `base`, a record of a class that this one extends, and more."""
        return cls(**values(base) | more)

    @classmethod
    def part_of(cls, whole: Any, **more: Any) -> Self:
        """The fields that `whole` has under the same names, except those in `more`, and these."""
        rest = [f.name for f in fields(cls) if f.name not in more and hasattr(whole, f.name)]
        return cls(**{name: getattr(whole, name) for name in rest} | more)


def values(record: Record) -> dict[str, Any]:
    """The fields of a record by name."""
    return {one.name: getattr(record, one.name) for one in fields(record)}


def part() -> Any:
    """A field that only some answers have: None, and then no key of the document."""
    return field(default=None, metadata={_PART: True})


def hidden(default: Any = MISSING, *, factory: Any = MISSING) -> Any:
    """A field that pages need and documents leave out."""
    metadata = {_HIDDEN: True}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def is_part(one: "Field[Any]") -> bool:
    """Whether only some answers have the field."""
    return _PART in one.metadata


def is_hidden(one: "Field[Any]") -> bool:
    """Whether documents leave the field out."""
    return _HIDDEN in one.metadata


def key_of(one: "Field[Any]") -> str:
    """The key of a field in a document."""
    return one.name.removesuffix("_")


@cache
def _shown(kind: type) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Key and name of each field that documents have, and the keys of those that are parts."""
    shown = [one for one in fields(kind) if not is_hidden(one)]
    parts = tuple(key_of(one) for one in shown if is_part(one))
    return tuple((key_of(one), one.name) for one in shown), parts


def keys(record: Any) -> dict[str, Any]:
    """What a document has of a record, by key; the values as they are.

    >>> from shardwise.roofline.bounds import Bounds
    >>> keys(Bounds(lower=1.0, expected=2.0, upper=3.0))
    {'lower': 1.0, 'expected': 2.0, 'upper': 3.0}
    """
    names, parts = _shown(type(record))
    found = {key: getattr(record, name) for key, name in names}
    for key in parts:
        if found[key] is None:
            del found[key]
    return found


def plain(value: Any) -> Any:
    """Records, mappings, tuples and numbers of NumPy as JSON has them; whole floats stay floats.

    >>> from shardwise.roofline.bounds import Bounds
    >>> plain({"step": Bounds(lower=1.0, expected=2.0, upper=3.0), "mesh": ("fsdp", 8)})
    {'step': {'lower': 1.0, 'expected': 2.0, 'upper': 3.0}, 'mesh': ['fsdp', 8]}
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {key: plain(one) for key, one in keys(value).items()}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    to_list = getattr(value, "tolist", None)
    return value if to_list is None else plain(to_list())


def flat(nested: Mapping[str, Any], between: str) -> dict[str, Any]:
    """Values by name; those of a mapping by its name and theirs.

    >>> flat({"seconds": {"lower": 1.0, "upper": 2.0}, "chips": 8}, "_")
    {'seconds_lower': 1.0, 'seconds_upper': 2.0, 'chips': 8}
    """
    found: dict[str, Any] = {}
    for name, value in nested.items():
        inner = value.items() if isinstance(value, dict) else None
        found |= {name: value} if inner is None else {f"{name}{between}{k}": v for k, v in inner}
    return found
