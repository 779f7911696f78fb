"""Committed tables of what the TPU compiler made: their form, their compiler and their age.

What each says is tested beside what it is of; here is what CI does not compile again.
"""

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OLDEST = 365
"""Days: a year of compilers' releases."""
ROW_FIELDS = {
    "docs/lab/compiled.json": {"name", "model", "slice", "mesh", "phase", "memory", "collectives"},
    "docs/lab/maxtext.json": {
        "id",
        "slice",
        "mesh",
        "step_seconds",
        "published_seconds",
        "compiled",
    },
    "docs/lab/planned.json": {"name", "plan", "state", "beside", "lines", "order"},
    "tests/kept/index.json": {"name", "slice", "mesh", "lowered"},
}
TABLES = {path: json.loads((ROOT / path).read_text()) for path in ROW_FIELDS}


def makings(doc):
    """(date, commit, versions) of a table, or of its rows where each was made on its own."""
    if "versions" in doc:
        return [(doc["date"], doc["commit"], doc["versions"])]
    rows = [row["compiled"] for row in doc["rows"]]
    return [(row["date"], row["commit"], row["versions"]) for row in rows]


@pytest.mark.parametrize("path", TABLES)
def test_every_row_is_there_once_with_every_field(path):
    doc = TABLES[path]
    assert doc["schema_version"] == 1
    names = [row.get("name") or row["id"] for row in doc["rows"]]
    assert len(set(names)) == len(names) > 0
    for row in doc["rows"]:
        assert ROW_FIELDS[path] <= set(row)


@pytest.mark.parametrize("path", TABLES)
def test_every_table_is_of_this_compiler_and_not_old(path):
    pins = (ROOT / "pyproject.toml").read_text()
    (jax,) = set(re.findall(r"jax\[tpu\]==([\d.]+)", pins))
    doc = TABLES[path]
    assert doc["date"] == max(made for made, _, _ in makings(doc))
    for made, commit, versions in makings(doc):
        assert versions["jax"] == jax
        assert re.fullmatch(r"\d+(\.\d+)+", versions["libtpu"])
        assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", commit)
        age = datetime.now(UTC).date() - date.fromisoformat(made)
        assert 0 <= age.days <= OLDEST


@pytest.mark.parametrize("path", TABLES)
def test_tables_stay_small(path):
    assert (ROOT / path).stat().st_size < 1_000_000
