#!/usr/bin/env python3
"""How the code above the planner is typed: a row of counts for each of its folders.

    lines      of its Python files
    ["name"]   subscripts by a constant text, read or written
    dicts      functions that take or return dict[str, Any] or Mapping[str, Any]
    errors     str(error) that is compared, searched, cut or split

Below stands how many of its files a planning command enters (`rooms_entered.py`).
"""

import ast
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rooms_entered import ROOT, entered

FOLDERS = ("verbs", "workflows", "commands", "apps/cli", "apps/page", "evidence")
ANY = re.compile(r"\b(dict|Mapping|MutableMapping)\[str, Any\]")
CUTS = (
    "split",
    "partition",
    "rpartition",
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
)
TRAIN = "plan train --model llama-3-8b --on v5e:4x4 --batch 32seq --seq 2048"
SERVE = "plan serve --model llama-3-8b --on h100:1 --input 512 --output 32 --tpot 40ms"


def counts(folder: Path) -> tuple[int, ...]:
    """(files, lines, subscripts by text, functions of dicts, errors read back) of a folder."""
    files = sorted(folder.rglob("*.py"))
    texts = [file.read_text(encoding="utf-8") for file in files]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return (
        len(files),
        sum(text.count("\n") for text in texts),
        sum(by_text(node) for node in nodes),
        sum(any(map(ANY.search, types(node))) for node in nodes),
        sum(reads_error(node) for node in nodes),
    )


def by_text(node: ast.AST) -> bool:
    """Whether it is a subscript such as `row["seconds"]`; `Literal["a"]` is a type."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return False
    return isinstance(node.slice.value, str) and ast.unparse(node.value) != "Literal"


def types(node: ast.AST) -> Iterator[str]:
    """What a function takes and returns."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        every = node.args
        given = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        found = [one.annotation for one in given if one is not None] + [node.returns]
        yield from (ast.unparse(one) for one in found if one is not None)


def reads_error(node: ast.AST) -> bool:
    """Whether the words of an error decide something."""
    if isinstance(node, ast.Compare):
        return any(map(is_error, (node.left, *node.comparators)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in CUTS and is_error(node.func.value)
    return False


def is_error(node: ast.AST) -> bool:
    """Whether it is `str(error)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
        return False
    name = ast.unparse(node.args[0])
    return node.func.id == "str" and bool(re.search(r"\b(error|err|exc|e|reason|failure)\b", name))


def main() -> None:
    """Print the table."""
    head = "folder", ("files", "lines", '["name"]', "dicts", "errors")
    rows = {f: counts(ROOT / f) for f in FOLDERS if (ROOT / f).exists()}
    rows["together"] = tuple(map(sum, zip(*rows.values(), strict=True)))
    for name, row in (head, *rows.items()):
        print(f"{name:12}", *(f"{one:>9}" for one in row))
    # Each in a process of its own: a second command would find answers that the first kept.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for words, files in zip((TRAIN, SERVE), pool.map(files_of, (TRAIN, SERVE)), strict=True):
            by = {f: sum(one.startswith(f"{f}/") for one in files) for f in FOLDERS}
            told = ", ".join(f"{count} of {folder}" for folder, count in by.items() if count)
            print(f"{' '.join(words.split()[:2])} enters {len(files)} files, of these {told}")


def files_of(words: str) -> list[str]:
    """The files of the package that a command enters."""
    return list(entered(words.split(), ""))


if __name__ == "__main__":
    sys.exit(main())
