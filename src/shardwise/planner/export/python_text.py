"""What the exporters that write Python share: names from outside as text, and reading it back.

A module is read as a tree, its values as literals: nothing of it is ever run.
"""

import ast
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardwise.errors import BadRequest, shown
from shardwise.planner.export.notes import MOST

LONGEST_BITS = 4096
"""Bits of the longest whole number that is written."""


def within_docstring(text: str) -> str:
    """Any text as part of a docstring: its quotes and backslashes escaped, and what is not
    printable; a usual name stays as it is.

    >>> print(within_docstring("llama-3"), within_docstring('a' + chr(92) + '\"\"\"' + chr(10)))
    llama-3 a\\\\\\"\\"\\"\\n
    """
    return repr(text)[1:-1].replace('"', '\\"')


def tree_of(target: str, text: str) -> ast.Module:
    """The tree of a module; BadRequest for what is not Python, or nested too deep to be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of somebody else's strings and comparisons
            return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError) as error:
        raise BadRequest(f"{target}: the file is not Python: {error}") from None


def count_of(target: str, name: str, value: Any) -> int:
    """A value that must be a count."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST:
        raise BadRequest(f"{target}: {name} is {shown(value)}; write a whole number from 1")
    return value


def one_function(
    target: str, tree: ast.Module, name: str, gives: Callable[[ast.FunctionDef], bool]
) -> ast.Module:
    """The module with one of the functions that give what is read, behind those that it calls;
    BadRequest where there are several, and `name` is none (`--given NAME=FUNCTION`)."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = [one for one in functions if gives(functions[one])]
    if not found:
        return tree
    said = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    chosen = next((one for one in found if one in said or len(found) == 1), None)
    if chosen is None:
        known = ", ".join(found[:_SHOWN]) + (" and more" if len(found) > _SHOWN else "")
        raise BadRequest(
            f"{target}: the module has {len(found)} configs, {known}; choose one with --given "
            f"{name}={found[0]}"
        )
    others = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    needed = [functions[one] for one in _called_first(functions, chosen, ())]
    return ast.Module(body=[*others, *needed], type_ignores=[])


def _called_first(
    functions: Mapping[str, ast.FunctionDef], name: str, above: tuple[str, ...]
) -> Iterator[str]:
    """A function's name behind those of the functions that it calls."""
    for node in ast.walk(functions[name]):
        if isinstance(node, ast.Name) and node.id in functions and node.id not in (*above, name):
            yield from _called_first(functions, node.id, (*above, name))
    yield name


_SHOWN = 6


def literal_of(target: str, name: str, node: ast.expr) -> Any:
    """The plain value that is assigned to a name; BadRequest where it is an expression."""
    name = name[:80]
    for part in ast.walk(node):  # a hexadecimal number may be too long to be printed
        value = part.value if isinstance(part, ast.Constant) else None
        if isinstance(value, int) and value.bit_length() > LONGEST_BITS:
            raise BadRequest(f"{target}: {name} holds a number of more than {LONGEST_BITS} bits")
    try:
        return ast.literal_eval(_folded(node))
    except (ValueError, TypeError, SyntaxError, MemoryError):
        raise BadRequest(
            f"{target}: {name} is {shown(ast.unparse(node))}; write a plain value"
        ) from None


def _folded(node: ast.expr) -> ast.expr:
    """A product of whole numbers as its value."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return node
    sides = (_folded(node.left), _folded(node.right))
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    left, right = values if len(values) == 2 else (None, None)
    if type(left) is not int or type(right) is not int or max(abs(left), abs(right)) > MOST:
        return node
    return ast.Constant(left * right)
