"""Lectures: each row asks what a person can answer, and leads to something that is drawn."""

import pytest
from starlette.testclient import TestClient

from shardwise.apps.page.app import page_app
from shardwise.apps.page.controls import state_of
from shardwise.apps.page.lectures import LECTURES
from shardwise.apps.page.views import VIEWS
from shardwise.book import entries

STEPS = [(chapter, step) for chapter, one in LECTURES.items() for step in one.steps]
NAMES = [f"{chapter}-{step.ask}" for chapter, step in STEPS]


def test_chapters_1_to_10_and_gpus_have_a_lecture():
    assert list(LECTURES) == [*map(str, range(1, 11)), "gpus"]
    assert all(len(one.steps) >= 2 for one in LECTURES.values())


@pytest.mark.parametrize(("chapter", "step"), STEPS, ids=NAMES)
def test_a_question_has_one_number_and_a_view_takes_the_state(chapter, step):
    asked = entries()[step.ask]
    assert asked.can_be_asked
    assert isinstance(asked.unit, str)
    assert asked.chapter in (chapter.replace("gpus", "12"), "deck")
    state_of(VIEWS[step.view].state, step.state)
    assert step.look.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize(("chapter", "step"), STEPS, ids=NAMES)
def test_what_is_to_be_seen_is_drawn_at_once(chapter, step):
    view = VIEWS[step.view]
    found = view.document(state_of(view.state, step.state))
    if step.figure:
        assert step.figure in [figure.id for figure in found.figures]
    else:
        assert found.player


def test_a_chapter_without_a_lecture_is_named():
    with TestClient(page_app(), base_url="http://localhost") as client:
        assert len(client.get("/api/lecture/5").json()["steps"]) == len(LECTURES["5"].steps)
        said = client.get("/api/lecture/11")
    assert said.status_code == 400
    assert "unknown lecture '11'" in said.json()["error"]
