"""Answers of the command line are those that were written before a change that keeps them.

`scripts/golden.py check tests/golden_answers/answers.json.gz` compares all of them.
"""

import sys
from pathlib import Path

import pytest
from tests.golden_answers.test_time_parts import check as check_parts

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import golden  # noqa: E402

ANSWERS = Path(__file__).with_name("answers.json.gz")
PLAN = {"mesh": {"fsdp": 8}, "zero": 1, "step_seconds": {"expected": 2.0}, "peak": 5e9}


@pytest.mark.slow
@pytest.mark.usefixtures("scores_kept")
def test_sixty_answers_over_all_kinds_are_those_of_before(capsys, monkeypatch):
    """And the parts of those that were searched add up."""
    asked, answers = [], golden.answers

    def heard(rows, *how):
        for row, (said, seconds) in zip(rows, answers(rows, *how), strict=True):
            asked.append((row, said))
            yield said, seconds

    monkeypatch.setattr(golden, "answers", heard)
    assert golden.check(ANSWERS, sample=60, jobs=1) == 0, capsys.readouterr().out
    assert check_parts(pair for pair in asked if pair[0]["kind"] in ("train", "serve")) >= 10


def test_the_file_holds_hundreds_of_requests_few_of_them_refused():
    rows = golden.read(ANSWERS)["rows"]
    assert len(rows) >= 600
    assert len({(tuple(row["words"]), str(row.get("files"))) for row in rows}) == len(rows)
    assert sum(row["said"]["code"] != 0 for row in rows) < 0.1 * len(rows)
    assert ANSWERS.stat().st_size < 1_000_000


def test_a_figure_that_moves_by_more_than_1e_9_is_one_line():
    after = {**PLAN, "step_seconds": {"expected": 2.0 * (1 + 1e-8)}, "new": 1}
    assert list(golden.differences(PLAN, after)) == [
        "step_seconds.expected: 2.0 -> 2.00000002 (x 1.00000001)"
    ]
    after["step_seconds"] = {"expected": 2.0 * (1 + 1e-10)}
    assert list(golden.differences(PLAN, after)) == []
    assert list(golden.differences(PLAN, {"mesh": {}, "step_seconds": {}})) == [
        "mesh.fsdp: 8 -> none",
        "zero: 1 -> none",
        "step_seconds.expected: 2.0 -> none",
        "peak: 5000000000.0 -> none",
    ]


def test_equals_of_a_ranking_may_swap_and_others_may_not():
    other = {**PLAN, "mesh": {"tensor": 8}}
    slower = {**PLAN, "zero": 2, "step_seconds": {"expected": 3.0}}
    before = {"runners_up": [PLAN, other, slower]}
    assert list(golden.differences(before, {"runners_up": [other, PLAN, slower]})) == []
    assert list(golden.differences(before, {"runners_up": [PLAN, slower, other]}))
    moved = {**other, "peak": 6e9}
    lines = list(golden.differences(before, {"runners_up": [moved, PLAN, slower]}))
    assert lines == ["runners_up[1].peak: 5000000000.0 -> 6000000000.0 (x 1.2)"]


def test_lines_of_progress_are_left_out():
    slow = "simulating: 10 runs, 16 s\nwriting: 2 of 9 states, 31 s, about 3 s left\n"
    assert golden.unhurried(f"warning: one\n{slow}error: two\n") == "warning: one\nerror: two\n"
