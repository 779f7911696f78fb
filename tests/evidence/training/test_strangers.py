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
FURTHER = TABLE.with_name("strangers_2026.csv")


@pytest.fixture(scope="module")
def rows():
    return read_table(TABLE).rows


@pytest.fixture(scope="module")
def found(rows):
    return validate(rows)


@pytest.fixture(scope="module")
def further():
    return validate(read_table(FURTHER).rows, folder=FURTHER.parent)


@pytest.mark.parametrize("table", [TABLE, FURTHER])
def test_no_table_has_them(table):
    rows = read_table(table).rows
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


def test_all_runs_of_further_strangers_are_priced(further):
    """Among them are eleven kinds of cards on which no table has a run."""
    assert not further.left_out
    assert len({row.run.group for row in further.rows}) == 6


def test_further_strangers_are_within_20_percent_in_the_median(further):
    """By run, and by publisher. Six runs of one publisher take 1.7 to 3.7 times as long."""
    assert median(abs(row.error) for row in further.rows) <= 0.20
    errors: dict[str, list[float]] = {}
    for row in further.rows:
        errors.setdefault(row.run.group, []).append(abs(row.error))
    assert median(map(median, errors.values())) <= 0.20


def test_ranges_of_further_strangers_are_too_narrow(further):
    """10 of 32 lie in theirs; most of the others are near."""
    assert sum(bool(row.inside) for row in further.rows) >= 10
    near = [0.5 <= row.predicted / row.measured <= 2 for row in further.rows]
    assert sum(near) / len(near) >= 0.85
