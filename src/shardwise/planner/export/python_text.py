"""What the exporters that write Python share: names from outside as text, and reading it back.

A module is read as a tree, its values as literals: nothing of it is ever run.
"""

import ast
import warnings
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
    """The tree of a module; BadRequest for what is no Python, or nested too deep to be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of somebody else's strings and comparisons
            return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError) as error:
        raise BadRequest(f"{target}: the file is no Python: {error}") from None


def count_of(target: str, name: str, value: Any) -> int:
    """A value that must be a count."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST:
        raise BadRequest(f"{target}: {name} is {shown(value)}; write a whole number from 1")
    return value


def literal_of(target: str, name: str, node: ast.expr) -> Any:
    """The plain value that is assigned to a name; BadRequest where it is an expression."""
    name = name[:80]
    for part in ast.walk(node):  # a hexadecimal number may be too long to be printed
        value = part.value if isinstance(part, ast.Constant) else None
        if isinstance(value, int) and value.bit_length() > LONGEST_BITS:
            raise BadRequest(f"{target}: {name} holds a number of more than {LONGEST_BITS} bits")
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        raise BadRequest(
            f"{target}: {name} is {shown(ast.unparse(node))}; write a plain value"
        ) from None
