"""What a few runs of one's own say: towards them, narrower, and nothing about other things."""

import math

import pytest

from shardwise.errors import BadRequest
from shardwise.planner.features import FEATURES
from shardwise.roofline.evidence import OwnRun, OwnRuns, Spread, read_spread
from shardwise.roofline.residuals import LogRange

RANGE = LogRange(low=-0.3, high=0.4)
KIND = dict.fromkeys(FEATURES, "a")
SPREAD = Spread(between=1.0, within=0.5, carried={"chip": 0.8, "trainer": 0.5}, runs=100, groups=10)


def shift(*logs: float, features=None, spread=SPREAD, range_=RANGE):
    """What runs of such residuals say of a plan of `KIND`."""
    runs = [
        OwnRun(features=features or KIND, log_ratio=log, range_=RANGE, marks=(str(i),))
        for i, log in enumerate(logs)
    ]
    return OwnRuns(name="RUNS.csv", runs=runs).of(KIND, range_, spread)


def width(found) -> float:
    return found.high - found.low


def test_runs_that_agree_move_the_level_and_narrow_the_range():
    one, three = shift(0.2), shift(0.2, 0.2, 0.2)
    assert 0 < one.level < three.level < 0.2
    assert width(RANGE) > width(shift(0.0)) > width(shift(0.0, 0.0, 0.0))
    assert three.interval(10.0) == pytest.approx(
        (10 * math.exp(three.low), 10 * math.exp(three.high))
    )
    assert three.interval_before(10 * three.times)[0] == pytest.approx(10 * math.exp(-0.3))


def test_the_mean_is_the_one_of_normal_densities():
    """Runs of one kind, none far from the others: B n / (B n + W) of their mean."""
    assert shift(0.1, 0.1, 0.1).level == pytest.approx(0.1 * 3 / (3 + 0.25))


def test_what_is_far_from_the_others_counts_as_a_deviation():
    usual, odd = shift(0.01, 0.01, 0.01), shift(0.01, 0.01, 2.0)
    assert odd.level < usual.level + 0.1
    assert width(odd) > width(RANGE)


def test_the_fewer_features_a_run_shares_the_less_it_says():
    near = shift(0.2, 0.2, features={**KIND, "chip": "b"})
    far = shift(0.2, 0.2, features={**KIND, "chip": "b", "trainer": "b"})
    assert shift(0.2, 0.2).level > near.level > far.level > 0
    assert width(shift(0.2, 0.2)) < width(near) < width(far) < width(RANGE)


def test_chips_of_another_vendor_say_nothing():
    found = shift(0.5, 0.5, features={**KIND, "vendor": "b"})
    assert (found.level, found.like, found.rows) == (0.0, 0, 2)
    assert (found.low, found.high) == (RANGE.low, RANGE.high)


def test_a_run_says_nothing_of_itself():
    run = OwnRun(features=KIND, log_ratio=0.3, range_=RANGE, marks=("mine", "again"))
    evidence = OwnRuns(name="RUNS.csv", runs=[run])
    assert evidence.rows == 2
    assert evidence.without("other").rows == 2
    assert evidence.without("mine").of(KIND, RANGE, SPREAD).level == 0


def test_the_packaged_spread_has_every_feature_but_the_vendor():
    spread = read_spread()
    assert {*spread.carried, "vendor"} == set(FEATURES)
    assert all(0 < part <= 1 for part in spread.carried.values())
    assert spread.between > spread.within > 0


def test_a_file_that_is_no_spread(tmp_path):
    path = tmp_path / "spread.toml"
    path.write_text("between = 1.0\n")
    with pytest.raises(BadRequest, match="no spread of publishers' runs"):
        read_spread(path)
