"""The search of the largest rate that holds."""

from math import ceil
from types import SimpleNamespace

import pytest

from shardwise.planner.simulate.rates import FINE, _largest, rounded
from shardwise.planner.simulate.steady import LIMIT


def trials(edge, tries):
    """Rates hold up to an edge; those that were tried."""

    def tried(rate):
        tries.append(rounded(rate))
        load = LIMIT * (tries[-1] / edge) ** 2
        return SimpleNamespace(rate=tries[-1], kept=tries[-1] <= edge, load=load, answered=1.0)

    return tried


@pytest.mark.parametrize("guess", [1.0, 4.27, 10.7, 11.0, 11.3, 35.0])
@pytest.mark.parametrize("edge", [1.005, 4.3, 11.05, 11.29, 99.95])
def test_it_ends_at_the_edge_though_rates_are_of_three_digits(guess, edge):
    tries = []
    held = _largest(trials(edge, tries), guess, FINE, FINE)
    assert held.rate <= edge <= held.rate * FINE * 1.01
    assert len(tries) < 40


@pytest.mark.parametrize("guess", [1.0, 4.27, 10.7, 11.3, 35.0])
@pytest.mark.parametrize("edge", [1.005, 4.3, 11.05, 99.95])
@pytest.mark.parametrize("share", [0.9, 0.97, 0.99, 1.0, 1.01, 1.1])
def test_a_least_rate_changes_no_answer_as_large(guess, edge, share):
    whole, tries = [], []
    held = _largest(trials(edge, whole), guess, FINE, FINE)
    least = share * held.rate
    found = _largest(trials(edge, tries), guess, FINE, FINE, least)
    assert tries == whole[: len(tries)]
    if held.rate > least:
        assert found.rate == held.rate
    else:
        assert found is None or found.rate <= least


@pytest.mark.parametrize("guess", [1.0, 4.27, 35.0])
@pytest.mark.parametrize("edge", [1.005, 4.3, 11.05])
@pytest.mark.parametrize("wanted", [0.5, 10.0, 300.0])
def test_enough_ends_where_every_rate_left_gives_one_number(guess, edge, wanted):
    def servers(rate):
        return max(1, ceil(wanted / rate))

    whole, tries = [], []
    held = _largest(trials(edge, whole), guess, FINE, FINE)
    found = _largest(
        trials(edge, tries), guess, FINE, FINE,
        enough=lambda low, high: servers(low) == servers(high),
    )  # fmt: skip
    assert tries == whole[: len(tries)]
    assert servers(found.rate) == servers(held.rate)
