"""Above the planner values are typed: how often a text still names a part of one, and where.

`MOST` is what is left of each folder, which may only become less; `scripts/upper.py` prints the
counts.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

import shardwise

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from upper import ANY, by_text, types

ROOT = Path(shardwise.__file__).parent
MOST = {"commands": (35, 31), "apps/cli": (5, 1), "apps/page": (4, 0)}
"""Subscripts by a constant text, and functions that take or return `dict[str, Any]`, at most."""


def counted(folder: str) -> tuple[Counter[str], int]:
    """The subscripts of each file of a folder, and its functions of dicts."""
    subscripts: Counter[str] = Counter()
    dicts = 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            subscripts[path.relative_to(ROOT).as_posix()] += by_text(node)
            dicts += any(map(ANY.search, types(node)))
    return subscripts, dicts


@pytest.mark.parametrize("folder", MOST)
def test_values_above_the_planner_are_typed(folder):
    subscripts, dicts = counted(folder)
    assert subscripts.total() <= MOST[folder][0]
    assert dicts <= MOST[folder][1], "give the value a type instead"


def test_a_subscript_by_a_text_and_a_mapping_of_anything_are_found():
    tree = ast.parse('def f(row: Mapping[str, Any]) -> dict[str, Any]:\n    return row["a"]\n')
    assert [by_text(node) for node in ast.walk(tree)].count(True) == 1
    assert any(any(map(ANY.search, types(node))) for node in ast.walk(tree))
