"""Goodput against a simulated run, the limits of its terms, and its errors."""

import random

import pytest

from shardwise.errors import BadRequest
from shardwise.planner.price.goodput import Overheads, goodput


def simulated(mtbf: float, save: float, restart: float, interval: float, seed: int) -> float:
    """Useful seconds over all seconds of a run with failures at random (exponential) times."""
    draw = random.Random(seed)
    clock = done = saved = 0.0
    failure = draw.expovariate(1 / mtbf)
    while saved < 4000 * interval:
        step = interval + save
        if clock + step <= failure:
            clock += step
            done += interval
            saved = done
        else:
            clock = failure + restart
            done = saved
            failure = clock + draw.expovariate(1 / mtbf)
    return saved / clock


def test_equals_a_simulated_run():
    over = Overheads(chip_mtbf=3e4 * 100, checkpoint=20, restart=100)
    found = goodput(over, chips=100)
    ran = simulated(3e4, 20, 100, found.interval, seed=1)
    assert found.share == pytest.approx(ran, abs=0.01)


def test_best_interval_is_no_worse_than_others():
    over = {"chip_mtbf": 1e8, "checkpoint": 30.0, "restart": 300.0}
    best = goodput(Overheads(**over), chips=4096)
    for times in (0.5, 0.8, 1.25, 2.0):
        other = goodput(Overheads(**over, interval=best.interval * times), chips=4096)
        assert other.share < best.share


def test_shares_add_up_and_off_means_nothing_is_lost():
    found = goodput(Overheads(straggler=1.1, chip_mtbf=1e8, checkpoint=30, restart=60), 1024)
    total = found.share + found.straggler + found.checkpoint + found.failures
    assert total == pytest.approx(1)
    assert found.trains == pytest.approx(found.share * 1.1)
    assert goodput(Overheads(), 100_000).share == 1
    assert Overheads().none
    assert goodput(Overheads(straggler=1.25), 8).share == pytest.approx(0.8)
    assert goodput(Overheads(straggler=1.25), 8).trains == pytest.approx(1)
    assert goodput(Overheads(checkpoint=10, interval=90), 8).share == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"straggler": 0.9}, "give 1 or more"),
        ({"checkpoint": -1}, "checkpoint is -1 s"),
        ({"chip_mtbf": 0}, "give more than 0"),
        ({"interval": 60}, "cannot take effect"),
        ({"chip_mtbf": 1e8}, "give the seconds from a failure to the first new step too"),
        ({"chip_mtbf": 1e8, "restart": 60}, "would lose the whole run"),
        ({"restart": 60}, "where nothing fails"),
        ({"checkpoint": 60}, "where nothing fails"),
    ],
)
def test_errors(values, said):
    with pytest.raises(BadRequest, match=said):
        Overheads(**values)


def test_a_job_that_never_finishes_is_refused():
    with pytest.raises(BadRequest, match="never finishes; save faster"):
        goodput(Overheads(chip_mtbf=1e6, checkpoint=60, restart=600), chips=10_000)
