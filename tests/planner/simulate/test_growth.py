"""Servers that follow a load: what their start-up costs is counted from the arrivals of a trace."""

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.planner.simulate.growth import SHARE, following

STEADY = np.arange(20_000) / 5.0
"""Five requests a second for more than an hour."""


def waves(seconds=3600, low=2.0, high=20.0, period=1200.0):
    """Arrivals whose rate rises and falls."""
    times = np.arange(0, seconds, 0.01)
    rate = low + (high - low) * (1 - np.cos(2 * np.pi * times / period)) / 2
    return np.interp(np.arange(int(rate.sum() * 0.01)), np.cumsum(rate) * 0.01, times)


def test_a_steady_load_needs_no_more_servers_however_late_they_start():
    for fleet in following(STEADY, 1.0, (1, 60, 600)):
        assert (fleet.servers, fleet.most_servers) == (5, 5)


def test_a_load_that_rises_costs_more_the_later_servers_start():
    fleets = following(waves(), 1.0, (1, 120, 300))
    means = [fleet.servers for fleet in fleets]
    assert means == sorted(means)
    assert means[-1] > 1.1 * means[0]
    assert all(fleet.servers <= fleet.most_servers for fleet in fleets)
    assert all(0 < fleet.utilisation <= 1 for fleet in fleets)


def test_enough_requests_find_enough_servers():
    """The rule itself, counted anew: servers are there for what was asked a start-up before."""
    arrivals, late = waves(), 4
    (fleet,) = following(arrivals, 1.0, (30.0 * late,))
    counts = np.bincount((arrivals // 30.0).astype(int))[:-1]
    load = counts / 30.0
    asked = np.maximum(fleet.fewest_servers, np.ceil(load / fleet.utilisation - 1e-9))
    there = asked[: -1 - late]
    found = counts[1 + late :][load[1 + late :] <= there + 1e-9].sum()
    assert found >= SHARE * counts[1 + late :].sum() - 1


def test_a_trace_that_ends_too_soon_is_refused():
    with pytest.raises(BadRequest, match="give a longer trace or a shorter start-up"):
        following(STEADY[:1000], 1.0, (600,))
