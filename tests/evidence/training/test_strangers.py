"""Runs of publishers whom no table of the package knows: priced, right and in their ranges."""

from pathlib import Path
from statistics import median

import pytest

from shardwise.evidence.training.runs import read_run
from shardwise.evidence.training.table import PUBLISHED, read_table, row_of
from shardwise.evidence.training.unseen import fingerprint, read_unseen
from shardwise.evidence.training.validate import validate

pytestmark = pytest.mark.usefixtures("answers_kept")

TABLE = Path(__file__).parent / "data" / "strangers.csv"


@pytest.fixture(scope="module")
def rows():
    return read_table(TABLE).rows


@pytest.fixture(scope="module")
def found(rows):
    return validate(rows)


def test_no_table_has_them(rows):
    known = {row["group"] for row in read_table(PUBLISHED).rows}
    assert not known & {row["group"] for row in rows}
    assert not read_unseen().keys() & {fingerprint(row_of(row)) for row in rows}
    assert all(row["citation"] for row in rows)


def test_all_are_priced(rows, found):
    """On 20 kinds of chips, by 19 publishers or programs."""
    assert len(rows) >= 100
    assert not found.left_out
    assert len({row.run.group for row in found.rows}) >= 19
    assert len({row.run.chip for row in found.rows}) >= 20


def test_they_are_within_14_percent_in_the_median(found):
    assert median(abs(row.error) for row in found.rows) <= 0.14


def test_publishers_are_within_14_percent_in_the_median(found):
    errors: dict[str, list[float]] = {}
    for row in found.rows:
        errors.setdefault(row.run.group, []).append(abs(row.error))
    assert median(map(median, errors.values())) <= 0.14


def test_most_lie_in_their_ranges(found):
    inside = [row.inside for row in found.rows]
    assert 0.7 <= sum(map(bool, inside)) / len(inside) <= 0.9


def test_unstated_facts_follow_from_rules():
    """A run that fits by no optimizer of whole copies says which stage was taken."""
    some = [row for row in read_table(PUBLISHED).rows if row["id"].startswith("swissai")]
    inferred = [said for row in some for said in read_run(row).inferred]
    assert inferred.count("ZeRO not stated: stage 1") == 2
