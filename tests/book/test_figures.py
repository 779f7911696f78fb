"""The book's figures as data: every one well-formed, general in its sizes, and consistent."""

import contextlib
from itertools import pairwise

import numpy as np
import pytest

import shardwise as sw
from shardwise.book.figure_index import FIGURES, figure, figure_ids, figure_settings
from shardwise.book.figures import (
    BookTorus,
    Figure,
    interactive,
    interactive_threshold,
    math_comms,
    measured,
    ragged,
    ratio_curves,
    sharded_gather,
)
from shardwise.book.megatron import MegatronRun, disagreement
from shardwise.book.questions import entry
from shardwise.errors import BadRequest

CURVES = [name for name in figure_ids() if name.startswith("fig.")]


@pytest.mark.parametrize("figure_id", CURVES)
def test_every_figure_has_curves_units_and_readings(figure_id):
    found = figure(figure_id)
    assert isinstance(found, Figure)
    assert found.chapter == FIGURES[figure_id].chapter
    assert found.id == figure_id
    assert found.series
    assert found.readings
    assert found.x_unit
    for series in found.series:
        assert len(series.x) == len(series.y) > 1
        assert np.all(np.diff(series.x) > 0)
        assert np.all(np.isfinite(series.y))


def test_an_unknown_figure_lists_the_others():
    with pytest.raises(BadRequest, match=r"fig\.5\.math_comm'; did you mean 'fig\.5\.math_comms'"):
        figure("fig.5.math_comm")


def test_crossings_lie_on_the_curves():
    """The reading is where the drawn curve passes 1."""
    found = ratio_curves(BookTorus(chips=512, d_ff=16384))
    by = {s.label: s for s in found.series}
    for label, reading in (("FSDP", "fsdp"), ("FSDP x tensor", "mixed")):
        at = np.interp(found.readings[f"{reading}_tokens_per_chip"], by[label].x, by[label].y)
        assert at == pytest.approx(1, rel=0.02)
    # alpha^2 / (2F) and alpha / 3, whatever the chips.
    assert found.readings["mixed_tokens_per_chip"] == pytest.approx(2550**2 / (2 * 16384))
    assert found.readings["fsdp_tokens_per_chip"] == pytest.approx(850)


def test_another_width_moves_the_tensor_plateau_only():
    narrow, wide = (ratio_curves(BookTorus(chips=64, d_ff=f)).readings for f in (15000, 30000))
    assert wide["tensor_ratio"] == pytest.approx(2 * narrow["tensor_ratio"])
    assert wide["fsdp_tokens_per_chip"] == pytest.approx(narrow["fsdp_tokens_per_chip"])


def test_overlap_lowers_the_best_mix_fourfold():
    readings = math_comms(BookTorus(chips=512)).readings
    both = [readings[f"threshold_tokens.X_opt, {mode}"] for mode in ("sum", "max")]
    assert both[0] == pytest.approx(4 * both[1])


def test_a_smaller_cube_has_fewer_splits_and_lower_thresholds():
    small, large = (interactive_threshold(BookTorus(chips=n)).readings for n in (512, 4096))
    assert small["threshold_tokens.512x1"] == pytest.approx(large["threshold_tokens.4096x1"] / 8)
    assert len(interactive(BookTorus(chips=512)).series) == 1 + 10


def test_a_gather_of_shards_falls_once_they_span_nodes():
    y = sharded_gather(d_model=1024, d_ff=4096, nodes=8).series[0].y
    assert y[0] == y[3] == pytest.approx(2 * 1024 * 4096 / 400e9)
    assert y[4] == pytest.approx(y[3] / 2)


def test_ragged_factors_lie_below_their_approximation():
    exact, rough = ragged(picks=8).series
    assert all(t <= r + 1e-12 for t, r in zip(exact.y, rough.y, strict=True))
    assert rough.y[6] == pytest.approx(7 / 8)


def test_measured_points_rise_with_the_message():
    points = measured("all_reduce_8xh100")
    assert list(points) == sorted(points)
    assert list(points.values()) == sorted(points.values())
    assert max(points.values()) < 450e9


def test_a_flat_torus_has_two_axes():
    """v5e: alpha / 2 for FSDP over both, alpha^2 / F for one axis each, no split over a third."""
    alpha, n = 1.97e14 / 9e10, 256
    flat = BookTorus(chips=n, d_ff=16384, chip="v5e")
    readings = ratio_curves(flat).readings
    assert readings["fsdp_tokens_per_chip"] == pytest.approx(alpha / 2)
    assert readings["mixed_tokens_per_chip"] == pytest.approx(alpha**2 / 16384)
    assert readings["tensor_ratio"] == pytest.approx(2 * 16384 / alpha / n)
    found = math_comms(flat).readings
    assert found["threshold_tokens.256-way DP"] == pytest.approx(n * alpha / 2)
    mixed = found["threshold_tokens.X_opt, max"]
    assert mixed == pytest.approx(n * alpha**2 / 16384)
    # Tensor over one whole axis of 16 leaves one for FSDP: 16 alpha tokens of the batch.
    wide = interactive_threshold(BookTorus(chips=n, d_ff=65536, chip="v5e")).readings
    assert wide["threshold_tokens.256x1"] == pytest.approx(n * alpha / 2)
    assert wide["threshold_tokens.16x16"] == pytest.approx(16 * alpha)


# Settings -----------------------------------------------------------------------------------------


def test_a_figure_takes_its_sizes_as_settings():
    """The same curves as of the dataclass that they are drawn on."""
    set_ = {"chips": 512, "d_ff": 16384}
    assert figure("fig.5.ratio_curves", set_) == ratio_curves(BookTorus(chips=512, d_ff=16384))
    assert figure_settings("fig.5.ratio_curves", set_)["d_model"] == 8192
    assert figure("fig.gpu.ragged", {"picks": 8}) == ragged(picks=8)


def test_the_slider_picks_splits():
    found = figure("fig.5.interactive", {"tensor": 8})
    assert [s.label for s in found.series] == ["math", "512x8"]
    several = figure("fig.5.interactive.tp", {"tensor": [2, 16]})
    assert [s.label for s in several.series] == ["2048x2", "256x16"]


@pytest.mark.parametrize(
    ("figure_id", "set_", "said"),
    [
        ("fig.5.interactive", {"tensor": 3}, "tensor is 3; on 4096 chips it is one of 1, 2"),
        ("fig.5.math_comms", {"chip": ["v5p", "v5e"]}, "chip is a list; it takes one value"),
        ("fig.5.math_comms", {"chips": "many"}, "chips is 'many'; it is a number"),
        ("fig.5.math_comms", {"chps": 4}, "did you mean 'chips'"),
        ("fig.8.pareto", {"contexts": [0]}, "contexts is 0; it is a whole number from 1"),
        ("fig.8.pareto", {"chips": 2}, "2 v5e hold no sequence of 2,048 tokens"),
        ("fig.8.pareto", {"params": "big"}, "params is 'big'; it is a number"),
        ("fig.gpu.ar_curve", {"chips": 2}, "unknown setting of fig.gpu.ar_curve 'chips'"),
    ],
)
def test_settings_that_are_refused(figure_id, set_, said):
    with pytest.raises(BadRequest, match=said.replace("(", r"\(")):
        figure(figure_id, set_)


# The widgets --------------------------------------------------------------------------------------


def test_the_widget_of_chapter_5_is_the_books():
    """All positions of its slider that the widget's data holds, to its printed digits."""
    flat = figure("fig.5.interactive").readings
    for split, want in zip(
        ("4096x1", "2048x2", "1024x4", "512x8", "256x16", "16x256"),
        entry("fig.5.interactive").book,
        strict=True,
    ):
        assert flat[f"flat_seconds.{split}"] == pytest.approx(want, rel=1e-6)
    end = figure("fig.5.interactive.tp").readings
    for split, want in zip(
        ("2048x2", "512x8", "256x16", "16x256", "1x4096"),
        entry("fig.5.interactive.tp").book,
        strict=True,
    ):
        assert end[f"seconds_at_1e8.{split}"] == pytest.approx(want, rel=1e-6)
    label = figure("fig.5.interactive.threshold").readings
    assert list(label.values()) == pytest.approx(entry("fig.5.interactive.threshold").book)


@pytest.mark.parametrize(("name", "context"), [("2k", 2048), ("64k", 65536)])
def test_the_pareto_widget_is_the_books(name, context):
    """Latency and throughput of the batches that the widget's data holds."""
    asked = entry(f"fig.8.pareto.{name}")
    batches = asked.inputs["B"].value
    curve = figure("fig.8.pareto", {"contexts": context}).series[0]
    got = [axis[b - 1] for axis in (curve.x, curve.y) for b in batches]
    assert got == pytest.approx(asked.book, rel=1e-6)


def test_the_serving_figures_read_what_the_book_answers():
    found = figure("fig.8.pareto").readings
    shown = [found[f"batch.S={s}"] for s in (2048, 4096, 8192, 16384, 32768, 65536)]
    assert shown == entry("fig.8.pareto.maxB").correct
    assert found["cheaper_at_twice_the_latency"] == pytest.approx(
        entry("fig.8.cost_reduction").correct
    )
    step = figure("fig.8.breakdown").readings
    assert step["kv_over_flops_context"] == pytest.approx(entry("fig.8.kv_vs_flops").correct)
    assert step["weights_seconds"] == pytest.approx(70e9 / (16 * 8.2e11))
    assert step["compute_bound_batch"] == pytest.approx(1.97e14 / 8.2e11 / 2)


def test_the_parts_of_a_step_are_the_step():
    """Caches, and the longer of weights and FLOPs."""
    parts = {s.label: np.array(s.y) for s in figure("fig.8.breakdown", {"context": 8192}).series}
    whole = parts["caches"] + np.maximum(parts["weights"], parts["FLOPs"])
    assert parts["step"] == pytest.approx(whole)


def test_megatron_s_table_has_what_was_measured_beside_what_is_predicted():
    """Measured as the book's table prints it; the book's rates, of which nothing is taken off, are
    above it for every run, and the expected ones below them and close to what was measured."""
    found = figure("fig.gpu.megatron")
    by = {s.label: np.array(s.y) for s in found.series}
    printed = {"1.7B": 0.41, "7.1B": 0.47, "16B": 0.49, "314B": 0.48}
    for size, mfu in printed.items():
        assert found.readings[f"measured.{size}"] == pytest.approx(mfu, abs=0.006)
    assert np.all(by["by the book's rates"] > by["measured"])
    assert np.all(by["expected"] < by["by the book's rates"])
    times = by["measured"] / by["expected"]
    assert np.median(times) < 1.15
    shown = sw.plan_show("audit:megatron-16b").result["mfu"]
    assert found.readings["expected.16B"] == pytest.approx(shown)
    shown = sw.plan_show("audit:megatron-16b", constants="book").result["mfu"]
    assert found.readings["by the book's rates.16B"] == pytest.approx(shown)


def test_a_run_beyond_the_range_of_such_runs_is_said():
    def run(measured):
        return MegatronRun(size="", params=1e9, mfu=(measured, 0.8, 0.4), times=(0.9, 1.2))

    assert disagreement([run(0.4), run(0.42)]) == ()
    (said,) = disagreement([run(0.4), run(0.46), run(0.5)])
    assert "2 of 3 runs were measured 1.15 to 1.25 times as fast as expected" in said
    assert "8 are at most 1.11 times as fast" in said


# Rooflines and speculation ------------------------------------------------------------------------


def test_narrow_weights_reach_the_peak_where_the_book_says():
    """137 and 227 tokens (question 3 of ch. 1), seen on the curves too."""
    found = figure("fig.1.batch")
    knees = entry("1.3.crit").correct
    assert list(found.readings.values()) == knees
    for series, knee in zip(found.series, knees, strict=True):
        at = int(knee) - 1
        assert series.y[at] == 1.97e14 > series.y[at - 1]


def test_square_products_lie_on_the_roof():
    found = figure("fig.1.roofline", {"sizes": [96, 768]})
    assert found.readings["intensity.96"] == pytest.approx(96 / 3)
    assert found.series[1].y == (96 / 3 * 8.2e11, 1.97e14)
    vmem = figure("fig.1.roofline", {"level": "vmem"}).readings
    assert vmem["critical_intensity"] == pytest.approx(240.24 / 22, rel=2e-3)


def test_flops_are_cubic_and_bytes_quadratic():
    flops, moved = figure("fig.4.matmul").series
    assert {b / a for a, b in pairwise(flops.y)} == {8}
    assert {b / a for a, b in pairwise(moved.y)} == {4}


def test_speculation_brings_all_guesses_and_one_more():
    found = figure("fig.7.speculation", {"guesses": 4})
    assert (found.series[0].y[0], found.series[0].y[-1]) == (1, 5)
    assert found.readings["at_80_percent.4 guesses"] == pytest.approx((1 - 0.8**5) / 0.2)


@pytest.mark.parametrize("figure_id", figure_ids())
def test_a_small_setting_draws_a_figure_or_is_refused(figure_id):
    for name, value in figure_settings(figure_id).items():
        for small in (1, 2, 3) if isinstance(value, int) else (0.5, 1.0):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                with contextlib.suppress(BadRequest):
                    figure(figure_id, {name: small})


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_what_a_figure_shows_is_a_whole_sentence(name):
    about = FIGURES[name].about
    assert not about.endswith((" ch.", "(ch.", " e.g.", " fig."))
    assert about.count("(") == about.count(")")
    assert len(about.split()) >= 5
