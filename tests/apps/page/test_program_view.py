"""The view of a compiled program: loops, searches, a part of the time, its graph and its trace."""

import json
from pathlib import Path

from tests.apps.commands import run
from tests.apps.page.states import asked, report_folder


def shown_ops(found):
    (table,) = [one for one in found["tables"] if one["title"] == "Dearest ops"]
    return [row[0] for row in table["rows"]]


def test_the_dearest_op_comes_first_and_is_the_longest(page):
    found = asked(page, "programs")
    table = found["tables"][-1]
    place = table["header"].index("seconds of all runs")
    spent = [row[place] for row in table["rows"]]
    assert spent == sorted(spent, reverse=True)
    longest = next(one for one in found["key"] if one["label"] == "longest op")
    assert [longest["note"], longest["value"]] == [table["rows"][0][0], spent[0]]


def test_words_that_no_op_has_draw_nothing(page):
    found = asked(page, "programs", find="zzz")
    assert found["figures"] == []
    said = "No op has 'zzz': search for a part of its name, scope or line."
    assert found["lines"][-1] == said
    said = said.replace("op has", "op in one round of while.67 x 16 has")
    assert asked(page, "programs", find="zzz", loop="1")["lines"][-1] == said


def test_a_loop_is_opened_and_ops_are_searched(page):
    closed, opened = asked(page, "programs"), asked(page, "programs", loop="2")
    (loops,) = [one for one in closed["tables"] if one["title"] == "Loops, to open"]
    assert [row[1] for row in loops["rows"]] == ["while.67 x 16", "while.66 x 16"]
    timeline = opened["figures"][0]
    assert timeline["title"].startswith("Ops of one round of while.66 x 16")
    ends = [x for mark in timeline["marks"] for x in mark["x2"]]
    begins = [x for mark in timeline["marks"] for x in mark["x"]]
    assert max(ends) - min(begins) < loops["rows"][1][2] / 8, "one round of sixteen"
    assert (
        closed["says"]
        == "The program 'train' on v5e:2x2 fits; its step takes 240 ms compiled, 311 ms predicted."
    )
    found = shown_ops(asked(page, "programs", find="splash_mha_fwd"))
    assert 2 <= len(found) < len(shown_ops(closed))
    assert shown_ops(asked(page, "programs", find="model.py:190"))


def test_a_part_of_the_time_is_shown_larger(page):
    zoomed = asked(page, "programs", begin="50", end="60")["figures"][0]
    whole = asked(page, "programs")["figures"][0]
    drawn = [[x for mark in one["marks"] for x in mark["x"]] for one in (zoomed, whole)]
    assert 0 < len(drawn[0]) < len(drawn[1])
    assert min(drawn[0]) >= 0.45 * max(x for mark in whole["marks"] for x in mark["x2"])
    said = page.get("/api/view/programs", params={"begin": "60", "end": "50"}).json()["error"]
    assert said.startswith("control 'begin' is 60; it lies before the end, 50; ")
    said = page.get("/api/view/programs", params={"loop": "4"}).json()["error"]
    assert said == "control 'loop' is 4; the program has 2 loops; choose a smaller number, or none"


def test_no_graph_is_of_more_ops_than_can_be_followed(page):
    graph = asked(page, "programs", top="200")["figures"][3]
    dots = [x for mark in graph["marks"] if mark["kind"] == "dot" for x in mark["x"]]
    assert len(dots) == 40
    (arrows,) = [mark for mark in graph["marks"] if mark["kind"] == "arrow"]
    assert 30 <= len(arrows["x"]) <= 80, "as many as can be followed"


def test_a_timeline_is_saved_for_perfetto(page):
    import gzip

    found = page.get("/api/trace/programs")
    assert found.headers["content-disposition"] == 'attachment; filename="train.trace.json.gz"'
    assert json.loads(gzip.decompress(found.content))["traceEvents"]
    assert page.get("/api/trace/roofline").status_code == 400
    assert page.get("/api/trace/programs", params={"folder": "/nowhere"}).status_code == 400


def test_expected_stands_beside_measured_where_both_are_there(page, capsys, tmp_path):
    folder = Path(report_folder(tmp_path / "report"))
    (folder / "profile.json").write_text(json.dumps({"result": RUN}))
    found = asked(page, "programs", folder=str(folder))
    figure = found["figures"][0]
    assert figure["title"] == "Expected and measured on 4 x TPU v5 lite, what overlaps twice"
    drawn = {
        mark["label"]: dict(zip(mark["y"], mark["x"], strict=True)) for mark in figure["marks"]
    }
    assert drawn["matmul"] == {"predicted": 0.3, "compiled": 0.32, "measured": 0.35}
    assert drawn["copy"] == {"predicted": 0.0, "compiled": 0.01, "measured": 0.02}
    assert ["step, measured", 0.42, "s"] in found["tables"][0]["rows"]
    _, said, _ = run(capsys, "report", str(folder))
    assert "measured on 4 x TPU v5 lite: 420 ms a step" in said
    other = asked(page, "programs", folder=str(folder), phase="decode")
    assert other["figures"][0]["id"] == "timeline", "that program was not run"
    damaged = Path(report_folder(tmp_path / "damaged"))
    (damaged / "profile.json").write_text('{"result": {"phase": "train"}}')
    refused = page.get("/api/view/programs", params={"folder": str(damaged)}).json()["error"]
    assert "profile.json' is damaged; write it again by `shardwise profile --out`" in refused


def times(where, measured, compiled, predicted):
    counted = {"flops": 0.0, "hbm_bytes": 0.0, "ops": 1}
    sides = {"measured": measured, "compiled": compiled, "predicted": predicted}
    return {"where": where, **sides, **counted}


STEP = {"measured": 0.42, "least": 0.41, "most": 0.43, "traced": 0.44}
RUN = {
    "phase": "train",
    "kind": "TPU v5 lite",
    "devices": 4,
    "mesh": {"fsdp": 4},
    "step_seconds": {**STEP, "compiled": None, "predicted": None},
    "by_class": [times("matmul", 0.35, 0.32, 0.3), times("copy", 0.02, 0.01, None)],
}
"""A run as `profile --out` keeps it."""
