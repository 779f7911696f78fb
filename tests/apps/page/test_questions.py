"""What a newcomer asks by one control is answered, or refused in words that lead on."""

import pytest
from tests.apps.page.states import asked

from shardwise.apps.page.controls import state_of
from shardwise.apps.page.views import VIEWS
from shardwise.apps.page.views.start import _links
from shardwise.errors import BadRequest


def values(view, name):
    return next(one.values for one in VIEWS[view].controls if one.name == name)


@pytest.mark.parametrize(
    ("view", "name"), [("pipeline", "schedule"), ("pipeline", "chunks"), ("batching", "policy")]
)
def test_each_choice_has_an_answer_beside_the_usual_ones(page, view, name):
    for word in values(view, name):
        assert asked(page, view, **{name: word})["says"]


def test_a_schedule_is_drawn_with_chunks_that_it_takes_and_says_so(page):
    found = asked(page, "pipeline", schedule="1f1b", chunks="4")
    assert found["lines"][0] == "Schedule 1f1b is drawn with 1 chunk per rank: it takes 1."
    assert "--set chunks=1" in found["commands"][0]
    assert asked(page, "pipeline", chunks="4")["lines"] == []


def test_a_plan_is_shown_where_the_book_has_no_lines(page):
    """On 8 chips of v5p the lines of ch. 5 for llama-3-70b do not cross."""
    state = {"model": "llama-3-70b", "chips": "8", "batch": "8192", "seq": "512"}
    found = page.get("/api/view/training", params=state).json()
    assert "crossover" not in found.get("error", "")
    assert not found.get("figures")
    assert asked(page, "training", **{**state, "chips": "64"})["figures"]


def test_training_says_where_tensor_parallelism_waits(page):
    usual = {"chips": "4", "batch": "65536", "beside": "", "fine": "quick"}
    said = [
        line
        for model in ("llama-3.2-1b", "llama-3-8b")
        for line in asked(page, "training", model=model, **usual)["lines"]
        if "tensor" in line
    ]
    rule = "By the book, tensor parallelism is bound by communication over more than "
    chips = [float(one.removeprefix(rule).removesuffix(" chips.")) for one in said]
    assert chips[1] / chips[0] == pytest.approx(14336 / 8192, rel=0.01), "by the MLP's width"


def test_a_number_of_the_book_stands_in_its_sentence(page):
    found = asked(page, "book", id="5.3.3.step")
    assert found["says"].endswith("on 4096 chips at 40 % of their peak: 310 ms.")
    assert "310" not in asked(page, "book", id="5.3.3.step", quiz="yes")["says"]


def test_each_of_several_numbers_of_the_book_has_its_unit(page):
    said = asked(page, "book", id="rule.4.mlp", quiz="yes", answer="1, 2")["lines"]
    assert "It is 1.21 GFLOP; 201M parameters." in said


def test_a_simulation_names_model_chips_and_servers(page):
    line = asked(page, "simulator", requests="25")["lines"][0]
    assert line == "16 chips: 1 server of v5e:4x4; llama-3-70b."


def test_a_long_list_of_choices_is_refused_with_the_nearest():
    with pytest.raises(BadRequest, match=r"control 'on' is 'h10'; .*nearest .*h100"):
        state_of(VIEWS["start"].state, {"on": "h10"})


def test_a_link_that_its_view_refuses_is_left_out():
    state = VIEWS["start"].state()
    most = max(values("serving", "chips"))
    assert _links("more", VIEWS["serving"], state, {"chips": f"{most}"})
    assert _links("more", VIEWS["serving"], state, {"chips": f"{most + 1}"}) == []


def test_serving_says_what_most_of_a_decode_step_is(page):
    state = {"model": "llama-3.2-1b", "chips": "1", "output": "32", "fine": "quick"}
    found = asked(page, "serving", **state)
    (where,) = (one for one in found["figures"] if one["id"] == "where")
    parts = {one["label"]: one["x"][0] for one in where["marks"]}
    longest = max(parts, key=lambda name: parts[name])
    line = next(one for one in found["lines"] if "decode step is" in one)
    assert line.startswith(f"The longest part of a decode step is {longest}: ")
    assert f"{parts[longest] / sum(parts.values()):.0%}".rstrip("%") in line.rpartition(",")[2]


def test_training_has_an_answer_on_a_chip_of_which_the_book_says_nothing(page):
    """Its rules are of a torus and of switches, and these chips are linked each to each."""
    state = {"model": "llama-3.2-1b", "on": "mi300x", "chips": "1", "batch": "8192", "beside": ""}
    lines = asked(page, "training", seq="512", fine="quick", **state)["lines"]
    assert lines
    assert not [one for one in lines if "tensor parallelism" in one]
