"""Class names are unique over the package: a name in a message or a review means one thing."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "shardwise"


def test_every_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
