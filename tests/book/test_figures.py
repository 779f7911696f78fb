"""The book's figures as data: every one well-formed, general in its sizes, and consistent."""

import numpy as np
import pytest

from shardwise.book.figures import (
    BookTorus,
    figure,
    figure_ids,
    interactive,
    interactive_threshold,
    math_comms,
    measured,
    ragged,
    ratio_curves,
    sharded_gather,
)
from shardwise.errors import BadRequest


@pytest.mark.parametrize("figure_id", figure_ids())
def test_every_figure_has_curves_units_and_readings(figure_id):
    found = figure(figure_id)
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
