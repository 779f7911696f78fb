"""Closed forms of pipelines equal the event timeline; the papers' formulas where they apply."""

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.drawn import on_drawn

from shardwise.errors import BadRequest
from shardwise.planner.price.pipeline import Pipeline, costs_of
from shardwise.planner.price.timeline import timeline
from shardwise.scheduling import pipeline_schedule, schedule_row
from shardwise.scheduling.pipeline import PIPELINE_KINDS

CHUNKS = {"zb_v": 2, "dualpipe": 2}


def pipeline_seconds(kind, S, M, v, F, B, W, t=0.0):
    """The closed form, of seconds of one microbatch."""
    return Pipeline(kind, S, M, v).seconds(*(M * each for each in (F, B, W, t)))


def rounded(seconds):
    """Up to the rounding of n/M times M, which is all that closed form and timeline differ by."""
    return pytest.approx(seconds, rel=1e-12, abs=0)


@st.composite
def pipelines(draw, kinds=PIPELINE_KINDS, most=10):
    kind = draw(st.sampled_from(kinds))
    S = draw(st.integers(1, most))
    M = draw(st.integers(1, 24))
    v = draw(st.integers(2, 5)) if kind == "interleaved" else CHUNKS.get(kind, 1)
    if kind == "dualpipe":
        S += S % 2
        M = 2 * S + 2 * (M // 2)
    elif kind == "zb_v":
        M += 2 * S - 2
    elif kind == "interleaved":
        M = S * (1 + M % 4)
    return kind, S, M, v if S > 1 else 1


def ends(shape, forward, backward, weight, transfer=0.0):
    schedule = pipeline_schedule(*shape)
    costs = costs_of(schedule, forward=forward, backward=backward, weight=weight, transfer=transfer)
    return timeline(schedule, costs)


# Multiples of 60 divide by every v.
seconds = st.integers(0, 40).map(lambda n: 60.0 * n)


@on_drawn(400, pipelines(), seconds, seconds, seconds)
def test_closed_form_is_the_timeline(shape, F, B, W):
    assert pipeline_seconds(*shape, F, B, W) == rounded(ends(shape, F, B, W).makespan)


@on_drawn(400, pipelines(), seconds, seconds, seconds, st.floats(0, 1))
def test_closed_form_with_transfers_up_to_a_pass(shape, F, B, W, share):
    v = 1 if shape[0] == "dualpipe" else shape[3]
    t = float(int(share * min(F, B) / v))
    assert pipeline_seconds(*shape, F, B, W, t) == rounded(ends(shape, F, B, W, t).makespan)


@on_drawn(150, pipelines(), seconds, seconds, seconds, seconds)
def test_closed_form_with_long_transfers_is_a_lower_bound(shape, F, B, W, t):
    latest = ends(shape, F, B, W, t).makespan
    assert pipeline_seconds(*shape, F, B, W, t) <= latest * (1 + 1e-12)


LARGE = [
    ("zb_v", 16, 64, 2),
    ("dualpipe", 16, 64, 2),
    ("dualpipe", 12, 24, 2),
    ("zb_h1", 16, 48, 1),
    ("interleaved", 12, 24, 4),
    ("1f1b", 16, 64, 1),
]


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_closed_form_of_large_pipelines(shape):
    rng = np.random.default_rng(len(shape[0]))
    for F, B, W in rng.integers(1, 30, (2, 3)) * 60.0:
        for t in (0.0, 3.0, min(F, B) // 4):
            assert pipeline_seconds(*shape, F, B, W, t) == rounded(ends(shape, F, B, W, t).makespan)


@on_drawn(200, pipelines())
def test_in_flight_is_the_fullest_rank(shape):
    schedule = pipeline_schedule(*shape)
    parts = 1 if shape[0] == "dualpipe" else shape[3]
    counted = max(schedule.in_flight(rank) for rank in range(shape[1]))
    assert schedule_row(shape[0]).in_flight(*shape[1:]) * parts == pytest.approx(counted)


@on_drawn(
    300, st.sampled_from(PIPELINE_KINDS), st.integers(1, 8), st.integers(1, 20), st.integers(1, 4)
)
def test_takes_is_the_rule_of_the_tables(kind, S, M, v):
    try:
        pipeline_schedule(kind, S, M, v)
    except BadRequest:
        assert not schedule_row(kind).takes(S, M, v)
    else:
        assert schedule_row(kind).takes(S, M, v)


def test_everything_broadcasts():
    S, M = np.array([[2], [4], [8]]), np.array([16, 24, 32])
    F, B, W = np.array([1.0, 2.0, 3.0]), 2.0, np.array([[1.0], [0.5], [2.0]])
    for kind in PIPELINE_KINDS:
        v = 2 if kind == "interleaved" else CHUNKS.get(kind, 1)
        whole = pipeline_seconds(kind, S, M, v, F, B, W, 0.25)
        held = schedule_row(kind).in_flight(S, M, v)
        assert whole.shape == held.shape == (3, 3)
        for i, s in enumerate(S[:, 0]):
            for j, m in enumerate(M):
                one = pipeline_seconds(kind, int(s), int(m), v, F[j], B, W[i, 0], 0.25)
                assert whole[i, j] == one
                assert held[i, j] == schedule_row(kind).in_flight(int(s), int(m), v)


def test_the_published_bubbles():
    """Megatron (2104.04473) eq. 2.2; zero bubble (2401.10241) table 1; V (2405.15362)."""
    S, M = 8, 32

    def bubble(kind, v, F=1.0, B=1.0, W=1.0):
        return pipeline_seconds(kind, S, M, v, F, B, W) - M * (F + B + W)

    assert bubble("1f1b", 1) == bubble("gpipe", 1) == (S - 1) * 3
    assert bubble("interleaved", 4) == (S - 1) * 3 / 4
    assert bubble("zb_h1", 1) == (S - 1) * 1
    assert bubble("zb_h1", 1, F=1.0, B=1.2, W=0.8) == pytest.approx((S - 1) * (1.0 + 1.2 - 0.8))
    # The V's ranks never wait once begun; the last begins after S-1 half stages.
    assert bubble("zb_v", 2) == (S - 1) * 0.5


def test_dualpipe_beats_its_report_by_sending_gradients_before_the_weight_pass():
    """DeepSeek-V3 table 2: (S/2-1) (F&B + B' - 3W), B' the whole backward pass, F&B = F + B'."""
    S, M, F, B, W = 8, 32, 1.0, 1.0, 1.0
    whole = B + W
    report = (S / 2 - 1) * ((F + whole) + whole - 3 * W)
    ours = pipeline_seconds("dualpipe", S, M, 2, F, B, W) - M * (F + B + W)
    assert ours == (S / 2 - 1) * (F + B - W)
    assert report - ours == (S / 2 - 1) * B


def test_an_unknown_schedule():
    for call in (
        lambda: pipeline_seconds("1b1f", 4, 8, 1, 1.0, 1.0, 1.0),
        lambda: schedule_row("1b1f"),
    ):
        with pytest.raises(BadRequest, match="unknown pipeline schedule '1b1f'; known"):
            call()
