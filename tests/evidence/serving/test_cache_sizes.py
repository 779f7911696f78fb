"""Counted caches held against those that servers printed; half of them chose no constant."""

import sys
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from cache_sizes import cache_sizes

ROWS = cache_sizes()
TOLD = [row for row in ROWS if row.told]
UNSEEN = [row for row in TOLD if row.held_out]


def test_there_are_enough_figures_and_half_are_held_out():
    assert len(TOLD) >= 25
    assert len(UNSEEN) >= len(TOLD) / 2
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_unseen_caches_are_as_large_as_counted():
    errors = [abs(row.error) for row in UNSEEN]
    assert median(errors) <= 0.1
    assert sum(error <= 0.2 for error in errors) >= 0.75 * len(errors)
    assert max(row.error for row in UNSEEN) <= 0.25


@pytest.mark.parametrize("held_out", [False, True])
def test_one_server_that_did_not_start_is_planned_at_most(held_out):
    failed = [row for row in ROWS if not row.started and row.held_out is held_out]
    assert len(failed) >= 5
    assert sum(row.holds for row in failed) <= held_out


def test_servers_that_started_are_planned():
    refused = [row.name for row in ROWS if row.started and not row.holds]
    assert not refused
