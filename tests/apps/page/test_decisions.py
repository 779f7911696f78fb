"""What a planner's answer ends with, as files: its plan, and notes of the decision sheet."""

import pytest
from tests.apps.page.states import asked

import shardwise as sw

SMALL = {"model": "llama-3.2-1b", "on": "v5e", "chips": "4"}


@pytest.mark.parametrize(
    ("view", "more"),
    [("training", {"batch": "65536"}), ("serving", {"input": "512", "output": "32"})],
)
def test_the_plan_of_the_answer_is_a_file(page, tmp_path, view, more):
    words = {**SMALL, **more}
    found = page.get(f"/api/plan/{view}", params=words)
    assert found.headers["content-disposition"] == f'attachment; filename="{view}.yaml"'
    (tmp_path / "plan.yaml").write_text(found.text)
    plan = sw.load_plan(tmp_path / "plan.yaml")
    rows = dict(
        row[:2] for row in table(asked(page, view, **words, fine="yes"), "The plan")["rows"]
    )
    assert plan.slice == (rows["slice"] if view == "training" else rows["chips of a server"])
    assert view == "serving" or plan.microbatches == rows["microbatches"]
    assert page.get("/api/plan/roofline").status_code == 400


def table(found, title):
    return next(one for one in found["tables"] if one["title"] == title)


def test_idle_chips_stand_in_the_sentence_and_a_sheet_names_other_slices(page):
    words = {"model": "llama-3-8b", "on": "v5p", "chips": "8,960", "tokens": "1T"}
    found = asked(page, "training", **words, fine="quick")
    used, idle = found["key"][0]["value"], found["key"][0]["note"].rpartition(", ")[2]
    assert idle == f"{8960 - used:,} more idle"
    assert f" on {used:,} of 8,960 chips of v5p " in found["says"]
    notes = page.get("/api/sheet/training/1", params=words | {"beside": "h100"}).json()["notes"]
    assert "Of 8,960 chips the nearest listed slices are taken: v5p:" in notes[-1]
    assert not any("( over" in note for note in notes)
