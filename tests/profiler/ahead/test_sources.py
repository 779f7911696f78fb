"""A kept program is found again until a source that makes it is edited."""

import shutil
from pathlib import Path

import pytest

import shardwise
from shardwise.commands.program.compiling import PLAN_BUILDER, USER_BUILDER
from shardwise.profiler.ahead.sources import JOB, source_hash, sources

ABOVE = ("planner", "results", "evidence", "book", "commands", "apps")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package's sources."""
    copy = tmp_path_factory.mktemp("tree") / "shardwise"
    source = Path(shardwise.__file__).parent
    for path in [*source.rglob("*.py"), *source.rglob("software/*.toml")]:
        to = copy / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    return copy


@pytest.fixture
def edited(tree, monkeypatch):
    """Whether the hash of the plans' programs is another one after an edit of a file."""
    monkeypatch.setattr(shardwise, "__file__", str(tree / "__init__.py"))

    def differs(name):
        path, before = tree / name, source_hash.__wrapped__(PLAN_BUILDER)
        text = path.read_bytes()
        path.write_bytes(text + b"\n# edited\n")
        try:
            return source_hash.__wrapped__(PLAN_BUILDER) != before
        finally:
            path.write_bytes(text)

    return differs


@pytest.mark.parametrize(
    "name",
    [
        *("apps/cli/compile.py", "apps/cli/options.py", "apps/page/view.py"),
        *("commands/program/compile.py", "planner/training.py", "__init__.py"),
    ],
)
def test_an_edit_of_help_page_or_command_keeps_programs(edited, name):
    assert not edited(name)


@pytest.mark.parametrize(
    "name",
    [
        *("runtime/programs/__init__.py", "runtime/trainer/step.py", "profiler/ahead/job.py"),
        *("models/parameters.py", "plans/train.py", "sharding/layout.py", "scheduling/__init__.py"),
        "plans/data/software/xla_flags.toml",
    ],
)
def test_an_edit_of_what_makes_a_program_makes_another(edited, name):
    assert edited(name)


@pytest.mark.parametrize("builder", [PLAN_BUILDER, USER_BUILDER])
def test_no_source_lies_above_the_programs(builder):
    found = sources(builder.partition(":")[0], JOB)
    assert JOB in found
    assert not {name.split(".")[1] for name in found} & {*ABOVE}
