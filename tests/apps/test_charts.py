"""Charts: ticks as the tables write numbers, labels that cover nothing, marks of what is chosen."""

from itertools import combinations

import numpy as np
import pytest
from tests.tiers import spread

from shardwise.apps.cli.charts import label_points, legend, log_axis, ticks_at
from shardwise.apps.cli.pictures import new_figure
from shardwise.apps.cli.sweep_chart import plot_sweep
from shardwise.commands.plan_train.points import chosen_point, sweep
from shardwise.hardware import read_slice


def axis_of(xs, ys):
    axis = new_figure(5, 4).subplots()
    axis.scatter(xs, ys)
    return axis


def tick_texts(axis, which):
    axis.figure.draw_without_rendering()
    line = axis.xaxis if which == "x" else axis.yaxis
    low, high = sorted(line.get_view_interval())
    places = line.get_majorticklocs()
    texts = line.get_major_formatter().format_ticks(places)
    return [text for place, text in zip(places, texts, strict=True) if low <= place <= high]


def test_no_tick_is_a_power():
    axis = axis_of([200e3, 6e6], [1.0, 2.0])
    log_axis(axis, "x", [200e3, 6e6])
    assert tick_texts(axis, "x") == ["200k", "500k", "1M", "2M", "5M"]
    ticks_at(axis, [256, 4096, 512])
    assert tick_texts(axis, "x") == ["256", "512", "4,096"]


def test_one_value_is_linear():
    axis = axis_of([3e5], [1.0])
    log_axis(axis, "x", [3e5])
    assert axis.get_xscale() == "linear"
    assert len(set(tick_texts(axis, "x"))) > 1


@pytest.mark.parametrize("seed", range(5))
def test_labels_cover_neither_each_other_nor_the_edge(seed):
    rng = np.random.default_rng(seed)
    xs, ys = rng.random(25), rng.random(25)
    axis = axis_of(xs, ys)
    label_points(axis, [(x, y, f"point {i}") for i, (x, y) in enumerate(zip(xs, ys, strict=True))])
    axis.figure.draw_without_rendering()
    boxes = [note.get_window_extent() for note in axis.texts]
    inside = axis.get_window_extent()
    assert len(boxes) >= 8
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert all(inside.x0 <= b.x0 and b.x1 <= inside.x1 for b in boxes)
    assert all(inside.y0 <= b.y0 and b.y1 <= inside.y1 for b in boxes)


def test_a_legend_stands_only_where_there_are_two_things():
    axis = axis_of([1.0], [1.0])
    axis.plot([1, 2], [1, 2], label="one")
    legend(axis)
    assert axis.get_legend() is None
    axis.plot([1, 2], [2, 1], label="two")
    legend(axis)
    assert axis.get_legend() is not None


@pytest.mark.parametrize("count", spread([1, 2], slow=1))
def test_a_sweep_of_few_points_is_drawn_with_its_deadline(tmp_path, count):
    pieces = [read_slice(text).slice for text in ("v5e:2x2", "v5e:2x4")][:count]
    points = sweep("llama-3.2-1b", pieces, batches=["256Ki"], lengths=[4096], tokens=1e11)
    within = chosen_point(points, "cost", 1e3)
    assert within is not None
    assert chosen_point(points, "cost", 1e-3) is None
    path = tmp_path / "sweep.png"
    plot_sweep(points, "llama-3.2-1b", path, days=within.days)
    assert path.stat().st_size > 10_000
