"""The JSON Schema of a record: its fields with their types, and the strings below them.

A record is an object that has all its fields and no other, but for those of `part`, which may be
missing. Every record stands once, under `$defs`, by the name of its class.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shardwise.boundary.records import is_hidden, is_part, key_of

Schema = dict[str, Any]
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}


def schema_of(kind: Any) -> Schema:
    """The schema of a record's class, or of one of several, with its `$defs`."""
    defs: dict[str, Schema] = {}
    found = _schema(kind, defs)
    return {**found, "$defs": defs} if defs else found


def _schema(kind: Any, defs: dict[str, Schema]) -> Schema:
    """The schema of a type; those of records are added to `defs`."""
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    if kind is Any or kind is object:
        return {}
    if isinstance(kind, type) and is_dataclass(kind):
        return _reference(kind, defs)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {"type": ["number", "null"]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(one, defs) for one in arguments]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], defs)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [_schema(one, defs) for one in arguments]}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": _schema(arguments[0], defs)}
    raise TypeError(f"no JSON Schema is known for {kind}")


def _reference(kind: type[Any], defs: dict[str, Schema]) -> Schema:
    name = kind.__name__
    if name not in defs:
        defs[name] = {}  # which a record of its own kind refers to
        defs[name] = _object(kind, defs)
    return {"$ref": f"#/$defs/{name}"}


def _object(kind: Any, defs: dict[str, Schema]) -> Schema:
    shown = [one for one in fields(kind) if not is_hidden(one)]
    hints, said = _hints(kind), _said(kind)
    properties: dict[str, Schema] = {}
    for one in shown:
        hint = _without_none(hints[one.name]) if is_part(one) else hints[one.name]
        about = {"description": said[one.name]} if one.name in said else {}
        properties[key_of(one)] = {**_schema(hint, defs), **about}
    return {
        "type": "object",
        "description": _first_line(kind),
        "properties": properties,
        "required": [key_of(one) for one in shown if not is_part(one)],
        "additionalProperties": False,
    }


def _without_none(kind: Any) -> Any:
    """What a part is where an answer has it."""
    return reduce(or_, (one for one in get_args(kind) if one is not NoneType))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of the fields, each as the module of its class has them."""
    hints: dict[str, Any] = {}
    for one in _classes(kind):
        shown = {f.name for f in fields(one) if not is_hidden(f)}
        own = inspect.get_annotations(one)
        only = type(one.__name__, (), {"__annotations__": {n: own[n] for n in own if n in shown}})
        hints |= get_type_hints(only, vars(sys.modules[one.__module__]), include_extras=True)
    return hints


def _classes(kind: type[Any]) -> list[type[Any]]:
    """The class and those that it extends which have fields, the first of them first."""
    return [one for one in reversed(kind.__mro__) if is_dataclass(one)]


@cache
def _said(kind: Any) -> dict[str, str]:
    """What the string below each field says, of the class and of those that it extends."""
    said: dict[str, str] = {}
    for one in _classes(kind):
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(made, ast.ClassDef)
        for field, below in zip(made.body, made.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(field.target, ast.Name)
                assert isinstance(below.value, ast.Constant)
                said[field.target.id] = " ".join(str(below.value.value).split())
    return said


def _first_line(kind: Any) -> str:
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
