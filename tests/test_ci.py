"""What CI runs: a stage that is given folders has all tests of its mark there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STAGES = dict(
    re.findall(
        r"^plain pytest -m (\w+)(?: -n 0| --part 1/12)?((?: tests/\S*)*)$",
        (ROOT / ".ci" / "run").read_text(),
        re.M,
    )
)
"""The folders of the stage of each mark; none means all."""


def test_every_mark_that_is_left_out_by_default_has_a_stage():
    """And so has `torch`: what it needs is installed after the tests of the README. Of those marked
    `long` a part runs; tests/long has the record of all."""
    project = (ROOT / "pyproject.toml").read_text()
    left_out = set(re.findall(r"not (\w+)", project.partition("addopts")[2].partition("\n")[0]))
    assert left_out == {"slow", "long", "browser", "alone"}
    assert set(STAGES) == left_out | {"torch"}


@pytest.mark.parametrize("mark", STAGES, ids="marked {}".format)
def test_tests_of_a_mark_lie_where_its_stage_looks(mark):
    folders = [ROOT / folder for folder in STAGES[mark].split()] or [ROOT]
    assert all(folder.is_dir() for folder in folders)
    wanted = re.compile(rf"mark\.{mark}\b")
    marked = [
        p
        for part in ("tests", "src")
        for p in (ROOT / part).rglob("*.py")
        if wanted.search(p.read_text())
    ]
    assert marked
    assert [p for p in marked if not any(folder in p.parents for folder in folders)] == []
