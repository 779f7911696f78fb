"""One exception tree, one exit code a class, and names that are nearly right."""

import ast

import pytest

from shardwise.errors import (
    BadRequest,
    MissingPart,
    NoFeasiblePlan,
    ShardwiseError,
    ThresholdMissed,
    unknown,
)
from trees import trees


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (ShardwiseError, 1),
        (BadRequest, 2),
        (NoFeasiblePlan, 3),
        (ThresholdMissed, 4),
        (MissingPart, 5),
    ],
)
def test_exit_codes(cls, code):
    assert cls.exit_code == code
    assert issubclass(cls, ShardwiseError)


def test_a_near_name_is_offered():
    said = str(unknown("mesh axis", "tensro", ["data", "tensor"], "axes are named by their role"))
    assert said == (
        "unknown mesh axis 'tensro'; did you mean 'tensor'? (axes are named by their role)"
    )


def test_several_near_names_are_offered_nearest_first():
    said = str(unknown("chip", "v5q", ["h100", "v5p", "v5e"]))
    assert said == "unknown chip 'v5q'; did you mean 'v5p' or 'v5e'?"


def test_without_a_near_name_a_short_list_is_shown_whole():
    assert str(unknown("kind", "zzz", ["train", "serve"])) == (
        "unknown kind 'zzz'; known: train, serve"
    )


def test_without_a_near_name_a_long_list_is_not_shown():
    said = str(unknown("chip", "zzz", [f"chip{i}" for i in range(50)], "see `shardwise hw list`"))
    assert said == ("unknown chip 'zzz'; no known name is similar (see `shardwise hw list`)")


def test_it_is_returned_so_that_the_caller_raises_it():
    assert isinstance(unknown("chip", "", []), BadRequest)


READ_BACK = {
    "apps/web/connection.py": "h11 appends what it came of on further lines",
    "profiler/ahead/job.py": "JAX and XLA raise one class for all that they refuse",
    "profiler/ahead/user.py": "JAX raises one class for all that it refuses",
    "profiler/jobs.py": "what a user's types raise is put on one line",
    "runtime/tensor_file.py": "safetensors has one class of errors",
}
"""Files that read the words of an error, each with its reason."""
CUTS = {"split", "partition", "rpartition", "startswith", "endswith", "find", "index"}
CUTS |= {"removeprefix", "removesuffix"}


def words_read(tree: ast.AST) -> list[str]:
    """Where the words of a caught error decide something: it is compared, searched or cut."""
    found = []
    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            found += [ast.unparse(n) for n in ast.walk(handler) if reads(n, handler.name)]
        if isinstance(handler, ast.FunctionDef):
            errors = [a.arg for a in handler.args.args if is_exception(a.annotation)]
            found += [ast.unparse(n) for n in ast.walk(handler) for e in errors if reads(n, e)]
    return found


def is_exception(annotation: ast.expr | None) -> bool:
    text = "" if annotation is None else ast.unparse(annotation)
    return text.endswith(("Error", "Exception", "BadRequest"))


def reads(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Compare):
        return any(is_words(one, name) for one in (node.left, *node.comparators))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in CUTS and is_words(node.func.value, name)
    return False


def is_words(node: ast.AST, name: str) -> bool:
    """Whether it is `str(error)`, `error.args[0]` or an f-string of the error."""
    texts = {f"str({name})", f"repr({name})", f"{name}.args[0]"}
    if isinstance(node, ast.JoinedStr):
        held = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return any(ast.unparse(one) in {name, *texts} for one in held)
    return ast.unparse(node) in texts


@pytest.mark.parametrize(
    "condition",
    [
        "'divide' in str(error)",
        "error.args[0] == 'x'",
        "f'{error}'.startswith('x')",
        "str(error).partition(' ')[0]",
    ],
)
def test_words_that_are_read_are_seen(condition):
    text = f"try:\n    pass\nexcept ValueError as error:\n    said = {condition}\n"
    assert len(words_read(ast.parse(text))) == 1


def test_no_words_of_an_error_decide_anything():
    read = {file: words for file, tree in trees().items() if (words := words_read(tree))}
    assert read.keys() == READ_BACK.keys()
