"""The record of scripts/long_tests is complete: every test marked `long` passed, as its file is."""

import re

import pytest
from tests.conftest import in_part
from tests.long.record import ROOT, digest, lacking, read
from tests.tiers import spread

FILE = "tests/long/test_record.py"


def test_every_long_test_passed_as_its_file_is_today(long_tests, collected_files):
    """`long_tests` are those of the files that this run has collected whole."""
    record = read()
    files = {*long_tests, *(file for file in record if file in collected_files)}
    problems = [text for file in files for text in lacking(file, long_tests.get(file, ()), record)]
    problems += [f"{file} is gone" for file in record if not (ROOT / file).exists()]
    assert not problems, "run scripts/long_tests:\n" + "\n".join(sorted(problems))


def test_long_tests_need_nothing_that_a_test_of_the_default_run_does_not(request):
    """They run wherever the record is made, and a few of them right after those of the README."""
    marks = [marks for marks in request.config.collected.values() if "long" in marks]
    assert not set().union(*marks) & {"torch", "browser", "alone"}


def test_an_entry_says_when_it_was_made_and_of_what():
    for file, entry in read().items():
        assert set(entry) == {"commit", "date", "digest", "tests"}, file
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])
        assert entry["commit"]
        assert all(seconds >= 0 for _, seconds in entry["tests"].values())


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"digest": "of yesterday"}, "has changed"),
        ({"tests": {}}, "::test_a was not run"),
        ({"tests": {"test_a": ["failed", 1.0]}}, "::test_a failed"),
        ({"tests": {"test_a": ["passed", 1.0], "test_b": ["passed", 1.0]}}, "::test_b is gone"),
    ],
)
def test_what_a_record_lacks_is_said(changed, problem):
    entry = {"digest": digest(FILE), "tests": {"test_a": ["passed", 1.0]}, **changed}
    said = lacking(FILE, ["test_a"], {FILE: entry})
    assert (len(said) == 1 and problem in said[0]) if problem else not said
    assert lacking(FILE, ["test_a"], {}) == [f"{FILE}: 1 tests were not run"]


IDS = [f"tests/test_a.py::test_a[{n}]" for n in range(1200)]


def test_parts_are_all_tests_and_each_is_in_one():
    parts = [[name for name in IDS if in_part(name, f"{k}/12", "abc")] for k in range(1, 13)]
    assert sorted(name for part in parts for name in part) == sorted(IDS)
    assert all(70 < len(part) < 130 for part in parts)


def test_a_part_is_another_at_another_commit():
    parts = [{name for name in IDS if in_part(name, "1/12", commit)} for commit in "abc"]
    assert len(set.union(*parts)) > 230


@pytest.mark.parametrize("part", ["", "1", "0/12", "13/12", "1/0", "a/b", "1/2/3"])
def test_a_part_that_is_none_is_refused(part):
    with pytest.raises(pytest.UsageError, match="--part"):
        in_part(IDS[0], part, "abc")


def test_cases_are_spread_over_the_three_runs():
    def marks(cases):
        return [(*case.values, *(mark.name for mark in case.marks)) for case in cases]

    assert marks(spread("abcd")) == [("a",), ("b", "long"), ("c", "long"), ("d", "long")]
    assert marks(spread("abcd", slow=1)) == [("a",), ("b", "slow"), ("c", "long"), ("d", "long")]
    assert marks(spread("abcd", quick=[2], slow=[0, 3])) == [
        ("a", "slow"),
        ("b", "long"),
        ("c",),
        ("d", "slow"),
    ]
    assert marks(spread([(1, 2), (3, 4)], rows=True)) == [(1, 2), (3, 4, "long")]
