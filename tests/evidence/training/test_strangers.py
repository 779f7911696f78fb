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


def test_nearly_all_are_priced(rows, found):
    """What is not has experts cut over ranks that see the same tokens, which a plan cannot say."""
    assert len(rows) >= 30
    assert len(found.rows) >= 0.97 * len(rows)
    assert {row.source for row in found.left_out} <= {"kempnerforge"}


def test_they_are_within_14_percent_in_the_median(found):
    assert median(abs(row.error) for row in found.rows) <= 0.14


def test_most_lie_in_their_ranges(found):
    inside = [row.inside for row in found.rows]
    assert 0.7 <= sum(map(bool, inside)) / len(inside) <= 0.9


def test_unstated_facts_follow_from_rules(rows):
    """A run that fits by no optimizer of whole copies says which stage was taken."""
    inferred = [
        said for row in rows if row["id"].startswith("swissai") for said in read_run(row).inferred
    ]
    assert inferred.count("ZeRO not stated: stage 1") == 2
