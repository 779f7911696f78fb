"""Above the planner values are typed: where a text still names a part of one, and why.

A row below says how often a file does, which may only become less. `scripts/upper.py` prints the
counts of the folders.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

import shardwise

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from upper import ANY, by_text, types

ROOT = Path(shardwise.__file__).parent
FOLDERS = ("commands/", "apps/cli/", "apps/page/")
MOST_IN_ALL = 50
SUBSCRIPTS = {
    "apps/cli/calibrate.py": (1, "options.json: a row by its command"),
    "apps/cli/pipeline_chart.py": (1, "a table of colours by the kind of an event"),
    "apps/page/app.py": (4, "ASGI: the scope and the path of a request"),
    "commands/plan_serve/second_opinion.py": (1, "dollars by what they are for"),
    "commands/plan_train/why.py": (1, "what was searched, by choice"),
    "commands/program/compile.py": (1, "seconds by what took them"),
    "commands/program/compiling.py": (3, "a mesh by axis; sums of a work by amount"),
    "commands/program/profiling.py": (2, "a mesh by axis"),
    "commands/program/report_result.py": (3, "cells of a CSV"),
    "commands/run/calibration/machine.py": (1, "links by axis of a mesh"),
    "commands/run/calibration/replay.py": (3, "a line of a server's log"),
    "commands/shard/run.py": (1, "runs by style"),
    "commands/tables/model.py": (4, "rows of a design, by title; where a config is from"),
    "commands/tables/plan_schema.py": (1, "a JSON Schema"),
    "commands/tables/schema.py": (7, "a JSON Schema"),
}
"""Subscripts by a constant text, at most, and what they read."""
TYPED = (*FOLDERS, "book", "apps/server", "apps/web")
"""Folders whose functions take and return types."""
DICTS = {
    "apps/server/app.py": (2, "the JSON door: the document of OpenAPI, a JSON Schema"),
    "apps/server/prompts.py": (2, "a chat's template reads mappings, and what a client adds"),
    "book/questions.py": (1, "the JSON door: an entry of a file"),
    "commands/base/answer.py": (1, "the JSON door: an answer as a document"),
    "commands/tables/schema.py": (2, "the JSON door: a JSON Schema"),
}
"""Functions that take or return `dict[str, Any]`, at most, and what that is."""


def counted() -> tuple[Counter[str], Counter[str]]:
    """Of each file the subscripts, and the functions of dicts."""
    subscripts: Counter[str] = Counter()
    dicts: Counter[str] = Counter()
    for path in (path for folder in TYPED for path in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            subscripts[name] += name.startswith(FOLDERS) and by_text(node)
            dicts[name] += any(map(ANY.search, types(node)))
    return subscripts, dicts


def test_values_above_the_planner_are_typed():
    for found, allowed in zip(counted(), (SUBSCRIPTS, DICTS), strict=True):
        many = {name: n for name, n in found.items() if n > allowed.get(name, (0, ""))[0]}
        assert not many, "read a field, or give the value a type"
    assert sum(most for most, _ in SUBSCRIPTS.values()) <= MOST_IN_ALL


def test_a_subscript_by_a_text_and_a_mapping_of_anything_are_found():
    tree = ast.parse('def f(row: Mapping[str, Any]) -> dict[str, Any]:\n    return row["a"]\n')
    assert [by_text(node) for node in ast.walk(tree)].count(True) == 1
    assert any(any(map(ANY.search, types(node))) for node in ast.walk(tree))
