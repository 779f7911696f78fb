"""The page's API: every view answers, says what its command says, and refuses with a remedy."""

import json
import math
import re
import shlex
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.apps.commands import run as command
from tests.apps.page.states import asked, start
from tests.tiers import spread

import shardwise as sw
from shardwise.apps.page.app import BUNDLE
from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import state_of, written
from shardwise.apps.page.views import VIEWS
from shardwise.apps.page.views.serving import cheapest
from shardwise.book import entries
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.units import sig

SEARCHED = ("start", "training", "serving")
LIGHT = [place for place, name in enumerate(VIEWS) if name not in SEARCHED]
"""Views that do not search for plans. Controls of all are turned in a browser, too."""
KINDS = {"line", "dot", "bar", "range", "rect", "rule", "arrow", "text"}
PACKED = 300_000
"""Bytes of the bundle, gzipped, at most."""


def numbers(value) -> Iterator[float]:
    """Every number within plain values."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        yield from chain.from_iterable(map(numbers, value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def others(control):
    """Words of a control."""
    if control.kind == "flag":
        return ["no" if control.default else "yes"]
    return [written(v) for v in control.values]


def moved(page, name, control, fine):
    """What a view shows with one control elsewhere: at the first position that its verb takes."""
    here = start(name, control.name).get(control.name, written(control.default))
    for word in [word for word in others(control) if word != here]:
        state = {**start(name, control.name), control.name: word}
        found = page.get(f"/api/view/{name}", params={**state, **fine})
        if found.status_code == 200:
            return found.json()
    raise AssertionError(f"no other value of {control.name} is answered")


@pytest.mark.usefixtures("answers_kept")
@pytest.mark.parametrize("name", spread(VIEWS, quick=LIGHT, slow=2))
def test_a_view_says_what_its_commands_say(page, capsys, name):
    """The results of its calls are the documents of its commands, and of the snippet's calls."""
    answers = page.get(f"/api/answer/{name}", params=start(name)).json()
    for said in answers:
        code, out, err = command(capsys, *shlex.split(said["command"])[1:], "--json")
        assert code == 0, err
        assert_same(said["result"], json.loads(out)["result"], said["command"])


def assert_same(first, second, where):
    """Equal, numbers to 1e-9."""
    if isinstance(first, dict) and isinstance(second, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}: {key}")
    elif isinstance(first, list) and isinstance(second, list):
        assert len(first) == len(second), where
        for one, two in zip(first, second, strict=True):
            assert_same(one, two, where)
    elif isinstance(first, float) or isinstance(second, float):
        assert math.isclose(first, second, rel_tol=1e-9), where
    elif not where.endswith("seconds_searched"):
        assert first == second, where


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_drawn_stands_in_the_results(page, name):
    """No key figure, and no number of a line, a bar or a range, is made by the page."""
    found = asked(page, name, fine="yes", **start(name))
    answers = page.get(f"/api/answer/{name}", params=start(name)).json()
    known = set(numbers([one["result"] for one in answers]))
    assert set(numbers([one["value"] for one in found["key"]])) <= known
    for figure in found["figures"]:
        for mark in figure["marks"]:
            assert mark["kind"] in KINDS
            if mark["kind"] in ("line", "dot", "bar", "range"):
                drawn = set(numbers([mark["x"], mark["x2"]]))
                assert drawn <= known, (figure["id"], mark["label"])
                assert set(numbers([mark["y"]])) <= known, (figure["id"], mark["label"])


@pytest.mark.parametrize("name", VIEWS)
def test_a_snippet_runs(name):
    view = VIEWS[name]
    document = view.document(state_of(view.state, start(name)), fine=True)
    made = [line for line in document.python.splitlines() if line.startswith("answer_")]
    assert len(made) == len(document.commands)
    for line in made:
        compile(line, name, "exec")
        assert hasattr(sw, line.partition("sw.")[2].partition("(")[0])


@pytest.mark.parametrize("name", spread(VIEWS, quick=LIGHT))
def test_every_control_changes_what_is_shown(page, name):
    view = VIEWS[name]
    fine = {"fine": "yes"} if view.slow else {}
    for control in view.controls:
        if control.kind not in ("text", "entry"):
            before = asked(page, name, **start(name, control.name), **fine)
            after = moved(page, name, control, fine)
            parts = ("figures", "tables", "lines", "player")
            shown = [[document[part] for part in parts] for document in (before, after)]
            assert shown[0] != shown[1], control.name


@pytest.mark.parametrize("name", VIEWS)
def test_a_bad_state_names_control_rule_and_remedy(page, name):
    for control in VIEWS[name].controls:
        bad = "x" * 1000
        found = page.get(f"/api/view/{name}", params={control.name: bad})
        said = found.json()["error"]
        assert found.status_code == 400
        assert said.startswith(f"control '{control.name}' is 'xxx"), said
        assert said.count(";") >= 2
    found = page.get(f"/api/view/{name}", params={"nothing": "1"})
    assert found.status_code == 400
    assert "unknown control 'nothing'; " in found.json()["error"]


def test_what_a_verb_refuses_is_said(page):
    found = page.get("/api/view/training", params={"on": "v5e", "chips": "300"})
    assert found.status_code == 400
    said = "control 'chips' is 300; v5e has no slice of so many; choose one of 256, 128, 64, 32"
    assert found.json()["error"] == said
    assert "unknown view 'rofline'; did you mean 'roofline'?" in page.get("/api/view/rofline").text


@pytest.mark.parametrize(
    ("view", "words", "value"),
    [
        ("roofline", {"m": "300"}, 300),
        ("training", {"batch": "6Mi"}, 6 << 20),
        ("training", {"chips": "8960"}, 8960),
        ("simulator", {"rate": "0.37"}, 0.37),
        ("collective", {"bytes": "5e6"}, 5e6),
        ("training", {"batch": "1000seq"}, 1000 * 4096),
        ("training", {"batch": "96seq", "seq": "2048"}, 96 * 2048),
        ("collective", {"bytes": "256MiB"}, 2**28),
        ("collective", {"bandwidth": "45GB/s"}, 4.5e10),
        ("simulator", {"ttft": "750ms"}, 0.75),
        ("simulator", {"tpot": "40ms"}, 40),
    ],
)
def test_a_slider_takes_numbers_as_the_command_line_spells_them(view, words, value):
    state = state_of(VIEWS[view].state, words)
    assert getattr(state, next(iter(words))) == value


@pytest.mark.parametrize("word", ["0", "300.5", "1e9", "many", "-3", "nan"])
def test_a_slider_refuses_what_is_no_size(word):
    with pytest.raises(BadRequest, match=r"it is a number from 1 to 16384; write one such as 256"):
        state_of(VIEWS["roofline"].state, {"m": word})


@pytest.mark.parametrize("word", ["1000000seq", "seq", "-1seq", "1GiB"])
def test_a_batch_refuses_what_is_no_number_of_sequences(word):
    with pytest.raises(BadRequest, match=r"control 'batch' is .*; it is a number from 8192 to"):
        state_of(VIEWS["training"].state, {"batch": word})


@pytest.mark.parametrize("name", ["start", "training", "serving"])
@pytest.mark.parametrize("on", ["v5e", "h100"])
def test_an_unknown_model_is_refused_at_once(page, name, on):
    found = page.get(f"/api/view/{name}", params={"model": "llama-9", "on": on})
    assert found.status_code == 400
    assert "unknown model 'llama-9'" in found.json()["error"]


def test_slices_are_of_so_many_chips():
    from shardwise.apps.page.views.chips import CHIPS, room, slice_name

    named = {
        ("v5p", 8960): "v5p:16x20x28",
        ("v5p", 512): "v5p:8x8x8",
        ("v5e", 128): "v5e:8x16",
        ("h100", 24): "h100:24",
        ("v5e", 4096): "16*v5e:16x16",
        ("trn2", 16): "trn2:4x4",
    }
    for words, found in named.items():
        assert slice_name(*words) == found
    for chip in CHIPS:
        for chips in (1, 3, 6, 48):
            held = parse_slice(slice_name(chip, room(chip, chips))).chips
            assert chips <= held <= 4 * chips, chip


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_begins_with_a_sentence(page, view):
    found = asked(page, view, **start(view), fine="yes")
    assert re.fullmatch(r"\S.{30,}\.", found["says"], re.DOTALL)


def test_a_model_that_is_written_out_has_its_view(page):
    model = "LlamaForCausalLM(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, "
    model += "intermediate_size=256, vocab_size=1000)"
    found = asked(page, "models", model=model)
    assert shlex.quote(model) in found["commands"][0]
    assert found["says"].startswith("your LlamaForCausalLM has ")
    assert found["tables"][0]["header"][1] == "your LlamaForCausalLM"


def test_machines_are_played(page):
    found = asked(page, "collective", kind="reduce_scatter", shape="4")
    played = found["player"]
    assert played["reduces"]
    assert all(move["blocks"] for frame in played["frames"] for move in frame["moves"])
    assert asked(page, "roofline")["player"] is None


def _step(found, name):
    plan = next(one for one in found["tables"] if one["title"] == "The plan")
    return next(row[1] for row in plan["rows"] if row[0] == name)


@pytest.mark.usefixtures("answers_kept")
def test_a_decision_begins_with_a_sentence(page):
    words = {**start("training"), "tokens": "1T"}
    found = asked(page, "training", fine="yes", **words)
    assert found["says"].startswith("Training llama-3-8b on 1T tokens takes about ")
    assert "8 of 10 runs" in found["says"]
    crossed = [m["label"] for f in found["figures"] for m in f["marks"] if m["kind"] == "rule"]
    assert any(label.startswith("math hides FSDP") for label in crossed)
    least = next(one for one in found["tables"] if one["title"].startswith("Behind the lower step"))
    assert {row[0] for row in least["rows"]} >= {"math", "HBM, what no program avoids"}
    assert max(row[1] for row in least["rows"]) == pytest.approx(_step(found, "step, lower"))
    for name, word in (("price", "much"), ("chip", "hbm_bandwidth")):
        said = page.get("/api/view/training", params={**words, "fine": "yes", name: word})
        assert said.status_code == 400
        assert f"control '{name}' is {word}; " in said.text


def test_the_batch_that_hides_fsdp_is_said_before_the_search(page):
    (said,) = asked(page, "training", **start("training"))["lines"]
    rule = r"By the book, .*, FSDP over 16 is bound by communication below .* a step \(.*\)\."
    assert re.fullmatch(rule, said)


def test_two_models_are_compared_in_a_sentence(page):
    assert asked(page, "models", model="llama-3-8b", beside="deepseek-v3")["says"] == (
        "llama-3-8b has 8.03B parameters, computes 17.2 GFLOPs a token and caches 128 KiB for it; "
        "deepseek-v3 has 671B parameters (37.6B of them for a token), computes 93.7 GFLOPs a token "
        "and caches 68.6 KiB for it."
    )


def test_chips_stand_below_their_makers(page):
    controls = {name: {c.name: c for c in view.controls} for name, view in VIEWS.items()}
    for name in ("start", "training", "serving", "hardware", "roofline"):
        chips = controls[name]["chip" if name == "hardware" else "on"]
        heads = [head for i, head in enumerate(chips.under) if head not in chips.under[:i]]
        assert dict(zip(chips.values, chips.under, strict=True))["gaudi3"] == "Intel"
        assert {"Google", "NVIDIA", "AMD"} < set(heads)


def test_a_machine_is_called_as_its_controls_are(page):
    found = asked(page, "collective", kind="reduce_scatter", network="full_mesh")
    assert found["player"]["title"].startswith("ReduceScatter over 8")
    assert " (full mesh) takes " in found["says"]
    assert "full mesh" in {c.name: c for c in VIEWS["collective"].controls}["network"].words


def test_what_differs_over_layers_is_said_in_short(page):
    rows = asked(page, "models", model="llama-3-8b", beside="deepseek-v3")["tables"][0]["rows"]
    beside = {row[0]: row[2] for row in rows}
    assert beside["d_ff F"] == "18,432; 2,048"
    assert beside["F / D"] == "2.57; 0.286"
    assert beside["tied embeddings"] == "no"


def test_a_size_is_the_same_in_the_sentence_and_beside_it(page):
    found = asked(page, "collective", bytes="8e6")
    busiest = next(one["value"] for one in found["key"] if one["unit"] == "bytes")
    assert "AllGather of 7.63 MiB over" in found["says"]
    assert found["says"].endswith(f"the busiest link carries {sig(busiest / 2**20)} MiB.")


def test_the_fastest_way_of_a_product_is_said(page):
    said = asked(page, "sharding")["says"]
    assert re.match(r"Of \d+ ways AllReduce_Y\(C\) is expected to take least: ", said)
    assert said.endswith("6.38 ms, each device sends 192 MiB.")


def test_a_number_of_either_chip_has_its_unit(page):
    pair = asked(page, "hardware", chip="v5p", beside="h100")["tables"][0]
    units = {row[0]: row[-1] for row in pair["rows"]}
    assert units["peak_flops.f32"] == units["peak_flops.bf16"] == "FLOP/s", "v5p has no f32"


SERVES = r"\d+ chips? \(\d+ servers? of .*\) answers? .* requests a second"


@pytest.mark.parametrize(
    ("name", "more", "says", "error"),
    [
        ("serving", {}, SERVES, "short runs"),
        ("start", {"task": "serve it"}, SERVES, "short runs"),
        ("training", {}, "Training llama-3-8b", "rarer pipeline schedules"),
        ("start", {}, "Training llama-3.2-1b", "rarer pipeline schedules"),
    ],
)
def test_a_quick_answer_comes_before_the_search(page, name, more, says, error):
    words = start(name) | more
    first = asked(page, name, **words)
    quick = asked(page, name, fine="quick", **words)
    assert (first["refines"], quick["refines"]) == ("quick", "yes")
    assert not first["says"]
    assert re.match(says, quick["says"])
    assert any(error in line for line in quick["warnings"]), "it says how far off it is"
    assert quick["figures"][len(first["figures"])]
    assert not any("--coarse" in line for line in quick["commands"]), "the command of the answer"


def test_the_cheapest_that_serves_as_much_is_named():
    def row(name, chips, rate, usd):
        return SimpleNamespace(
            name=name, chips=chips, requests_per_second=rate, usd_per_hour=usd, servers=""
        )

    def said(*rows) -> str:
        return cheapest(cast(Any, SimpleNamespace(instead=[row("this", 2, 10, 8), *rows])))

    fewer, dear, cheap = row("fewer", 1, 9, 4), row("b200", 1, 10, 9), row("l4", 8, 12, 5)
    assert said(fewer, dear, cheap) == (
        "By the estimates below l4 is cheapest for as many requests: "
        "8 chips, $5 an hour; this is $8."
    )
    assert said(fewer, dear) == "Nothing in the table below serves as much for less."
    assert said(fewer) == said() == said(row("v4i", 4, 10, None)) == ""


def test_a_call_is_words_and_python():
    call = VerbCall(
        verb="plan_train",
        given=("llama-3-8b", "v5p:2x2x2"),
        keywords={"batch": "8seq", "remat": None, "sets": {"a": 1, "b": [1, 2]}, "spot": True},
    )
    assert call.shell() == (
        "shardwise plan train --model llama-3-8b --on v5p:2x2x2 --batch 8seq --set a=1 --set b=1,2 "
        "--spot"
    )
    assert call.python() == (
        "sw.plan_train('llama-3-8b', 'v5p:2x2x2', batch='8seq', sets={'a': 1, 'b': [1, 2]}, "
        "spot=True)"
    )


def test_the_bundle_is_small():
    import gzip

    assert sum(len(gzip.compress(p.read_bytes())) for p in BUNDLE.iterdir()) < PACKED


# ---- the sheet to decide by


@pytest.mark.usefixtures("answers_kept")
def test_a_decision_sheet_has_chips_prices_and_growth(page):
    words = {**start("training"), "model": "llama-3.2-1b", "on": "v5e", "chips": "4"}
    words |= {"tokens": "1T", "beside": "h100"}
    assert page.get("/api/view/training", params=words).json()["growths"] == ["1", "2", "4"]
    once, twice = (page.get(f"/api/sheet/training/{n}", params=words).json() for n in (1, 2))
    assert once["header"][-1] == "USD"
    assert {row[0] for row in once["rows"]} == {"v5e", "h100"}
    assert len({row[3] for row in once["rows"] if row[0] == "h100"}) == 3, "prices"
    days = once["header"].index("days")
    for one, two in zip(once["rows"], twice["rows"], strict=True):
        assert two[days] == pytest.approx(2 * one[days])
        assert two[-1] == pytest.approx(2 * one[-1])
        assert one[-1] == pytest.approx(one[days] * 24 * 4 * one[3])
    assert "plan sweep" in once["commands"][0]


def test_a_decision_sheet_says_what_it_lacks(page):
    def refusal(path, **words):
        found = page.get(f"/api/sheet/{path}", params=words)
        assert found.status_code == 400
        return found.json()["error"]

    assert "unknown growth '3'" in refusal("training/3")
    assert "unknown view with a decision sheet 'roofline'" in refusal("roofline/1")
    assert "control 'tokens' is ; a decision sheet is of a run" in refusal("training/1", tokens="")
    for beside in ("", "v5p"):
        assert "sets chips side by side; write such as" in refusal("training/1", beside=beside)


# ---- the quiz


def test_a_question_is_asked_hinted_and_checked(page):
    words = {"id": "5.3.3.step", "quiz": "yes"}
    found = asked(page, "book", **words)
    assert found["right"] is None
    assert found["says"].startswith("Seconds of a training step")
    assert len(found["tables"]) == 1, "the steps stay hidden"
    assert (
        "Hint: 6 N D; then FLOPs / (N C MFU)." in asked(page, "book", hint="yes", **words)["lines"]
    )
    for answer, right in (("310 ms", True), ("1 s", False)):
        checked = asked(page, "book", answer=answer, **words)
        assert checked["right"] is right
        (steps,) = [one for one in checked["tables"] if one["title"] == "Steps"]
        assert steps["rows"][0][2] == "params 1.3e+10, tokens 3e+06"


def test_the_next_question_can_be_asked(page):
    link, *_ = asked(page, "book", id="10.2.latest", quiz="yes")["links"]
    following = link["state"]["id"]
    assert link["state"]["quiz"] == "yes"
    assert entries()[following].chapter == "10"
    assert entries()[following].can_be_asked
    said = asked(page, "book", id="9.mem", quiz="yes")["lines"]
    assert any(line.startswith("This one is not asked") for line in said)


def test_a_question_is_a_link_away(page):
    link = asked(page, "book")["links"][0]
    assert link["text"] == "Ask me a question of this chapter"
    assert link["state"]["quiz"] == "yes"
    assert link["state"]["id"] != VIEWS["book"].controls[0].default, "its answer was shown"


def test_numbers_of_the_book_are_chosen_by_chapter_and_in_words(page):
    views = {view["name"]: view for view in page.get("/api/views").json()}
    control = next(one for one in views["book"]["controls"] if one["name"] == "id")
    assert len(control["values"]) == len(control["words"]) == len(control["under"])
    assert {"Chapter 1", "Chapter 10", "GPUs"} <= set(control["under"])
    assert asked(page, "book")["tables"][0]["edits"] == "set"
