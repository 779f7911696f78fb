"""The Gantt chart of a pipeline: what is drawn, and what is refused."""

import re
import sys

import pytest

from shardwise.apps.cli import pipeline_chart
from shardwise.apps.cli.pipeline_chart import COLOURS, draw_pipeline, title_of
from shardwise.errors import BadRequest, MissingPart
from shardwise.planner.price.pipeline import costs_of
from shardwise.planner.price.timeline import timeline
from shardwise.scheduling import pipeline_schedule


def line_of(kind="zb_v", stages=4, microbatches=8, chunks=2, **more):
    schedule = pipeline_schedule(kind, stages, microbatches, chunks)
    costs = costs_of(schedule, forward=1e-3, backward=1e-3, weight=1e-3, **more)
    return timeline(schedule, costs)


@pytest.mark.parametrize(
    ("kind", "chunks", "kinds"),
    [("1f1b", 1, "FB"), ("interleaved", 3, "FB"), ("zb_v", 2, "FBW"), ("dualpipe", 2, "FBW")],
)
def test_colours_and_numbers_of_every_schedule(tmp_path, kind, chunks, kinds):
    path = tmp_path / "chart.svg"
    draw_pipeline(line_of(kind, chunks=chunks), path)
    text = path.read_text(encoding="utf-8").lower()
    for name in "FBW":
        assert (f"fill: {COLOURS[name].lower()}" in text) == (name in kinds)
    # Matplotlib leaves the text of each label in a comment.
    assert re.search(rf"<!-- {kind}: 4 stages.* 8 microbatches, bubble \d+\.\d% -->", text)
    drawn = re.findall(r"<!-- (\d+) -->", text)
    assert {str(microbatch) for microbatch in range(8)} <= set(drawn)


def test_title_gives_the_bubble():
    assert title_of(line_of("1f1b", chunks=1)) == "1f1b: 4 stages, 8 microbatches, bubble 27.3%"
    two = title_of(line_of("interleaved"))
    assert two == "interleaved: 4 stages, 2 chunks per stage, 8 microbatches, bubble 15.8%"


@pytest.mark.slow
def test_reductions_and_updates_are_drawn_where_they_are(tmp_path):
    path = tmp_path / "chart.svg"
    draw_pipeline(line_of(), path)
    plain = path.read_text(encoding="utf-8")
    draw_pipeline(line_of(reduction=1e-3, optimizer=1e-4), path)
    text = path.read_text(encoding="utf-8")
    assert "gradient reduction" in text
    assert "gradient reduction" not in plain
    assert COLOURS["optimizer"].lower() in text.lower()


def test_png(tmp_path):
    path = tmp_path / "chart.png"
    draw_pipeline(line_of(), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_numbers_only_where_they_fit(tmp_path):
    path = tmp_path / "chart.svg"
    draw_pipeline(line_of("1f1b", microbatches=400, chunks=1), path)
    assert not re.findall(r"<!-- 399 -->", path.read_text(encoding="utf-8"))


def test_what_is_refused(tmp_path, monkeypatch):
    line = line_of()
    with pytest.raises(BadRequest, match=r"the ending says the format, \.png or \.svg"):
        draw_pipeline(line, tmp_path / "chart.bmp")
    with pytest.raises(BadRequest, match="give another --plot"):
        draw_pipeline(line, tmp_path / "nowhere" / "chart.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPart, match="--plot needs matplotlib"):
        draw_pipeline(line, tmp_path / "chart.png")
    monkeypatch.setattr(pipeline_chart, "MOST_BARS", 100)
    with pytest.raises(BadRequest, match="has 192 passes; at most 100 are drawn"):
        draw_pipeline(line, tmp_path / "chart.png")
