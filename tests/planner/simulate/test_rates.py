"""The search of the largest rate that holds."""

from types import SimpleNamespace

import pytest

from shardwise.planner.simulate.rates import FINE, _largest, rounded
from shardwise.planner.simulate.steady import LIMIT


@pytest.mark.parametrize("guess", [1.0, 4.27, 10.7, 11.0, 11.3, 35.0])
@pytest.mark.parametrize("edge", [1.005, 4.3, 11.05, 11.29, 99.95])
def test_it_ends_at_the_edge_though_rates_are_of_three_digits(guess, edge):
    tries = []

    def tried(rate):
        tries.append(rounded(rate))
        load = LIMIT * (tries[-1] / edge) ** 2
        return SimpleNamespace(rate=tries[-1], kept=tries[-1] <= edge, load=load, answered=1.0)

    held = _largest(tried, guess, FINE, FINE)
    assert held.rate <= edge <= held.rate * FINE * 1.01
    assert len(tries) < 40
