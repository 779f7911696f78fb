"""A choice is a row: no name of a schedule, a remat policy, a stack, a context method or an
optimizer decides anything elsewhere.

What depends on one is a field of its row. A new one is written where the row lies, and everything
else reads it. The exporters and the rows of other software say what that calls a plan's choices,
so they name them.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from tests.trees import trees

from shardwise.models.remat import REMAT_POLICIES
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.optimizers import OPTIMIZERS
from shardwise.plans.stacks import STACKS
from shardwise.scheduling.pipeline import PIPELINE_KINDS

CHOICES = {
    # Names, what an expression is called that holds one, and where the rows lie.
    "schedule": (PIPELINE_KINDS, r"\b(pipeline_)?schedule\b|\bkind\b", "scheduling/pipeline/"),
    "remat policy": (REMAT_POLICIES, r"remat\b|\bpolic(y|ies)\b", "models/remat.py"),
    "stack": (STACKS, r"\bstack\b|\bsoftware\b", "plans/stacks.py"),
    "context method": (CONTEXT_METHODS, r"\bmethod\b|context_method", "plans/context_methods.py"),
    "optimizer": (OPTIMIZERS, r"\boptimizer\b|\bupdate\b", "plans/optimizers.py"),
}
EXPORTS = ("planner/export/", "plans/software/")
ELSEWHERE = {"none", "block", "offload", "interleaved", "xla", "fsdp", "jax", "all_gather", "ring"}
"""Names that are other things too (a mesh axis, a compiler, a program, a collective, nothing): they
count where what they are compared with is called after the choice."""
MOST_FILES = 3


@cache
def sources() -> dict[str, ast.Module]:
    return {name: tree for name, tree in trees().items() if not name.startswith(EXPORTS)}


def literals(node: ast.AST) -> set[str]:
    """Strings that a node holds itself, or as the members of a tuple, list, set or dict."""
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


@cache
def decisions(tree: ast.AST) -> tuple[tuple[int, str, set[str]], ...]:
    """Line, text and strings of all that compares (==, in), matches or looks up by a string."""
    return tuple(found for found in _decisions(tree) if found[2])


def _decisions(tree: ast.AST) -> Iterator[tuple[int, str, set[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            members = [
                part
                for part in (node.left, *node.comparators)
                if isinstance(part, ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict)
            ]
            yield node.lineno, ast.unparse(node), set().union(*map(literals, members))
        elif isinstance(node, ast.Match):
            cases = set().union(*(literals(case.pattern) for case in node.cases))
            yield node.lineno, ast.unparse(node.subject), cases
        elif (looked := looked_up(node)) is not None:
            table, by = looked
            keys = (literals(key) for key in table.keys if key is not None)
            yield by.lineno, ast.unparse(by), set().union(*keys)


def looked_up(node: ast.AST) -> tuple[ast.Dict, ast.expr] | None:
    """A written table and what is looked up in it: {...}[by], {...}.get(by)."""
    match node:
        case ast.Subscript(value=ast.Dict() as table, slice=by):
            return table, by
        case ast.Call(func=ast.Attribute(value=ast.Dict() as table, attr="get"), args=[by, *_]):
            return table, by
    return None


def deciding(names: tuple[str, ...], called: str, tree: ast.AST) -> list[str]:
    """Decisions by one of the names."""
    return [
        f"{line}: {text}"
        for line, text, strings in decisions(tree)
        if strings & (set(names) - ELSEWHERE)
        or (strings & set(names) and re.search(called, text.replace("scheduling", "")))
    ]


@pytest.mark.parametrize("choice", CHOICES)
def test_no_name_of_a_choice_decides_anything_outside_its_rows(choice):
    names, called, rows = CHOICES[choice]
    found = [
        f"{file}:{where}"
        for file, tree in sources().items()
        if not file.startswith(rows)
        for where in deciding(names, called, tree)
    ]
    assert not found, f"read a field of the {choice}'s row instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        ("context method", "if plan.context_method in ('ring', 'all_gather'): pass"),
        ("context method", "match self.setup.plan.context_method:\n    case 'ulysses': pass"),
        ("context method", "blocks = {'ring': 2.0}[shape.context_method]"),
        ("optimizer", "if plan.optimizer == 'muon': pass"),
        ("stack", "if software == 'fsdp': pass"),
        ("remat policy", "kept = policy != 'none'"),
    ],
)
def test_a_decision_by_name_is_found_of_every_choice(choice, code):
    names, called, _ = CHOICES[choice]
    assert deciding(names, called, ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "if plan.pipeline_schedule == 'dualpipe': pass",
        "if 'zb_v' != kind: pass",
        "split = kind in ('zb_h1', 'zb_v')",
        "match schedule:\n    case 'interleaved': pass",
        "chunks = {'gpipe': 1}.get(schedule, 2)",
        "chunks = {'interleaved': 2, '1f1b': 1}[schedule]",
    ],
)
def test_a_decision_by_name_is_found(code):
    names, called, _ = CHOICES["schedule"]
    assert deciding(names, called, ast.parse(code))


@cache
def strings_of(tree: ast.Module) -> set[str]:
    """Strings of a file that are no docstring or comment."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }


@pytest.mark.parametrize("kind", PIPELINE_KINDS)
def test_a_schedule_s_name_stands_in_few_files(kind):
    """Its own file, the list of rows, and one more: what runs or plans of ours are called."""
    files = [file for file, tree in sources().items() if kind in strings_of(tree)]
    if kind in ELSEWHERE:
        files = [
            file for file in files if not re.search(r"serve|scheduling/(config|policies)", file)
        ]
    assert len(files) <= MOST_FILES, f"'{kind}' stands in {', '.join(files)}"
