"""The record of public projects' train steps, and the page that is made of it."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import explain_projects as projects  # noqa: E402  (found by the line above)

RECORD = json.loads(projects.RECORD.read_text())
TEXTS = frozenset({"date", "project", "version", "jax", "libtpu", "slice", "mesh"})
NUMBERS = frozenset(
    ("cpu_seconds", "step_seconds", "floor_seconds", "unknown_seconds", "explained", "at_its_lines")
)


def test_the_page_is_that_of_the_record():
    assert projects.PAGE.read_text() == projects.page(RECORD)
    assert {"maxtext", "flax"} < {row["project"] for row in RECORD.values()}
    assert len({row["project"] for row in RECORD.values()}) >= 4


@pytest.mark.parametrize("name", RECORD)
def test_a_step_is_explained_in_time_and_at_the_projects_lines(name):
    row = RECORD[name]
    assert row.keys() == TEXTS | NUMBERS | {"findings"}
    assert all(isinstance(row[key], str) and row[key] for key in TEXTS)
    above = row["step_seconds"] - row["floor_seconds"]
    assert row["explained"] == pytest.approx(1 - row["unknown_seconds"] / above, abs=1e-4)
    assert row["explained"] >= 0.85
    assert row["cpu_seconds"] <= 300
    assert row["at_its_lines"] >= 0.5
    for found in row["findings"]:
        assert found.keys() == {"rule", "where", "share"}
        assert ".py:" not in found["where"] or projects.ROWS[name].owns(found["where"])
