"""Chapter 10's exercises in examples/ give what plain JAX gives, on eight virtual devices."""

from pathlib import Path

import pytest

from shardwise.profiler import run_source

FOLDER = Path(__file__).parents[1] / "examples"
LINES = {"shard_map_slices": 8, "collective_matmuls": 7, "experts_all_to_all": 3}
"""The lines of each: what was compared, and whether it is the same."""
CODE = """
import sys
sys.path.insert(0, {folder!r})
for name in {names!r}:
    print("#", name)
    __import__(name).main()
"""


@pytest.fixture(scope="module")
def said():
    """The lines of each example, which run in one process."""
    code = CODE.format(folder=str(FOLDER), names=list(LINES))
    parts = run_source(code, devices=8).split("# ")[1:]
    return {part.split("\n")[0]: part.strip().split("\n")[1:] for part in parts}


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_every_line_is_true(said, name):
    assert len(said[name]) == LINES[name]
    assert all(line.endswith(" True") for line in said[name]), said[name]


def test_every_example_with_a_main_is_run():
    found = {p.stem for p in FOLDER.glob("*.py") if "def main()" in p.read_text()}
    assert found == set(LINES)
