"""The package's sources as syntax trees, parsed once for all tests that look at them."""

import ast
from functools import cache
from pathlib import Path

import shardwise

ROOT = Path(shardwise.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    """By file, from the package's folder."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }


@cache
def nodes(file: str) -> tuple[ast.AST, ...]:
    """All nodes of a file."""
    return tuple(ast.walk(trees()[file]))
