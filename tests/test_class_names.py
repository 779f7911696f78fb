"""Class names are unique over the package: a name in a message or a review means one thing."""

import ast
from collections import defaultdict

from tests.trees import nodes, trees


def test_every_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for file in trees():
        for node in nodes(file):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(file)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
