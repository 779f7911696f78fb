"""What a rule of the book takes, read and checked by what its function says of it.

A parameter's annotation says its kind: a chip, a slice, a mesh, a word of a closed set, a switch, a
number or several. A text stands for what is not a number; a number is finite and, unless arithmetic
alone is done with it (`SIGNED`), not negative. Every rule is called through `read_argument`, so
that none has to check this. A formula goes on between whole numbers, as one step of an answer may
give it 117.6 chips; a question has whole ones of what is counted one by one (`check_whole`).
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from math import inf
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import numpy as np

from shardwise.book.seed import book_chip, book_slice
from shardwise.boundary import number, whole
from shardwise.errors import BadRequest, check_known, entry_of, shown
from shardwise.hardware import Chip, Slice
from shardwise.hardware.totals import TreeLevel, fat_tree
from shardwise.models import ModelConfig, load_model
from shardwise.models.training_state import TrainingState
from shardwise.roofline import ElementBytes
from shardwise.sharding import Layout, Mesh, parse_sizes
from shardwise.work import Quantity

SIGNED = (
    *("part", "whole", "value", "left", "right", "max_one", "max_two"),
    *("parts", "factors", "values", "members"),
)
"""Numbers of which a rule only makes sums and products, or that are logarithms."""
FROM_ZERO = ("digits", "norms", "row", "column", "saved", "start", "end", "chip")
"""Whole numbers that may be 0."""
COUNTED = (
    *("axes", "axes_x", "axes_y", "bm", "bn", "chips", "degree", "devices", "domain", "experts"),
    *("experts_per_token", "fsdp", "groups", "heads", "instructions", "keys", "lanes", "layers"),
    *("links", "microbatches", "nodes", "other_chips", "ports", "queries", "saved", "shards"),
    *("stages", "tensor", "width"),
)
"""What comes one by one, by the name of the parameter; those that are annotated as int do, too."""
MOST_COUNTED = 10**15


def read_argument(parameter: Parameter, value: Any) -> Any:
    """A value that a function takes. Raises BadRequest for one of another kind, outside its range,
    or that is not a word of its set; it names the parameter."""
    if value is parameter.default or (value is None and type(None) in _kinds(parameter)):
        return value
    kinds = [kind for kind in _kinds(parameter) if kind is not type(None)]
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    for kind in kinds:
        origin = get_origin(kind)
        if origin is Literal:
            return _word(parameter.name, value, get_args(kind))
        if origin is not None and issubclass(origin, Mapping):
            return _sizes(parameter.name, value)
        if origin is not None and issubclass(origin, Sequence):
            return _several(parameter.name, value, get_args(kind))
        if kind in OBJECTS:
            return _object(parameter.name, value, kind)
    return _READERS[kinds[0]](parameter.name, value)


def is_counted(parameter: Parameter) -> bool:
    """Whether it is a number of things: whole."""
    kinds = _kinds(parameter)
    return int in kinds or (Quantity in kinds and parameter.name in COUNTED)


def check_whole(parameters: Mapping[str, Parameter], given: Mapping[str, object]) -> None:
    """Raise BadRequest for a number of things, of a question, that is not whole."""
    for name, value in given.items():
        if name in parameters and is_counted(parameters[name]):
            for one in value if isinstance(value, list) else [value]:
                _count(name, one)


def _kinds(parameter: Parameter) -> tuple[Any, ...]:
    """The members of its annotation; a number or an array of them is one kind."""
    annotation = parameter.annotation
    if annotation == Quantity:
        return (Quantity,)
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


def _refused(name: str, value: Any, form: str) -> BadRequest:
    return BadRequest(f"{name} is {shown(value)}; it is {form}")


# Words and switches -------------------------------------------------------------------------------


def _word(name: str, value: Any, known: Sequence[str]) -> str:
    if not isinstance(value, str):
        raise _refused(name, value, f"one of {', '.join(known)}")
    check_known(name, value, known)
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refused(name, value, "a word")
    return value


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refused(name, value, "true or false")
    return value


# Numbers ------------------------------------------------------------------------------------------


def _count(name: str, value: Any) -> int:
    least = -MOST_COUNTED if name in SIGNED else int(name not in FROM_ZERO)
    return whole(value, name, least=least, most=MOST_COUNTED)


def _float(name: str, value: Any) -> float:
    """A number; a whole one stays an integer."""
    if isinstance(value, str):
        raise _refused(name, value, "a number")
    found = number(value, name, least=-inf if name in SIGNED else 0)
    return value if isinstance(value, int) else found


def _quantity(name: str, value: Any) -> Quantity:
    if not isinstance(value, list | tuple | np.ndarray):
        return _float(name, value)
    items = value.tolist() if isinstance(value, np.ndarray) else value
    return np.array(_each(name, items, _quantity), float)


def _several(name: str, value: Any, kinds: Sequence[Any]) -> Any:
    """A list of one kind; a tuple has as many as its annotation says."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    items = list(value) if isinstance(value, list | tuple) else [value]
    if len(kinds) > 1 and Ellipsis not in kinds and len(items) != len(kinds):
        raise _refused(name, value, f"{len(kinds)} numbers, such as {'8,' * (len(kinds) - 1)}8")
    if kinds[0] is TreeLevel and isinstance(value, str):
        return fat_tree(book_chip(value))
    if kinds[0] in OBJECTS:
        return _each(name, items, lambda _, item: _object(name, item, kinds[0]))
    return _each(name, items, _READERS[kinds[0]])


def _each(name: str, items: Sequence[Any], read: Callable[[str, Any], Any]) -> list[Any]:
    if not items:
        raise _refused(name, [], "a list of numbers with one at the least")
    return [read(name, item) for item in items]


_READERS: Mapping[Any, Callable[[str, Any], Any]] = {
    str: _text,
    bool: _switch,
    int: _count,
    float: _float,
    Quantity: _quantity,
}


# What a text stands for ---------------------------------------------------------------------------


def _sizes(name: str, value: Any) -> Mapping[str, int]:
    if isinstance(value, str):
        return parse_sizes(value)
    if not isinstance(value, Mapping) or not value:
        raise _refused(name, value, "sizes by dim, such as I=8,J=16")
    return {str(dim): _count(f"{name} of {dim}", size) for dim, size in value.items()}


def _mesh(value: Any) -> Mesh:
    """A mesh of its text, or of degrees by axis."""
    if isinstance(value, str):
        return Mesh.parse(value)
    degrees = {
        axis: whole(degree, f"mesh axis '{axis}'", least=1) for axis, degree in value.items()
    }
    return Mesh.of(degrees)


def _elements(value: str) -> ElementBytes:
    dtypes = value.split(",")
    if len(dtypes) not in (1, 3):
        raise BadRequest(
            f"elements is {shown(value)}; it is one dtype, or those of left, right and result "
            "such as bf16,int8,bf16"
        )
    left, right, result = dtypes * (4 - len(dtypes)) if len(dtypes) == 3 else dtypes * 3
    return ElementBytes.of(left=left, right=right, result=result)


def _level(value: str) -> TreeLevel:
    """`CHIP:LEVEL`, a level of the switches of a chip's nodes."""
    chip, _, level = value.partition(":")
    levels = {one.name: one for one in fat_tree(book_chip(chip))}
    remedy = f"write it like {chip}:{next(iter(levels))}"
    return entry_of(f"level of '{chip}'", level, levels, remedy)


def _state(value: str) -> TrainingState:
    raise _refused("state", value, "what `shardwise.book.state_bytes` gives, in Python alone")


OBJECTS: Mapping[Any, tuple[Callable[[Any], Any], str]] = {
    Chip: (book_chip, "a chip, such as v5p"),
    Slice: (book_slice, "a slice, such as v5p:4x4x4"),
    Mesh: (_mesh, "a mesh, such as X=4,Y=2"),
    Layout: (Layout.parse, "an array and its cuts, such as A[I_X, J]"),
    ElementBytes: (_elements, "a dtype, such as bf16"),
    ModelConfig: (load_model, "a model, such as llama-3-8b"),
    TreeLevel: (_level, "a level of a chip's switches, such as h100:node"),
    TrainingState: (_state, "what `shardwise.book.state_bytes` gives"),
}
"""What a text stands for: how it is read, and what it is."""


def _object(name: str, value: Any, kind: Any) -> Any:
    read, form = OBJECTS[kind]
    if isinstance(value, kind):
        return value
    if isinstance(value, str) or (kind is Mesh and isinstance(value, Mapping) and value):
        return read(value)
    raise _refused(name, value, form)
