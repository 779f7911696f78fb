"""The spread of publishers' runs is found again from runs that were drawn by one."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.evidence.training.test_runs import TABLE

from shardwise.evidence.training.own import looks
from shardwise.evidence.training.table import read_table
from shardwise.evidence.training.validate import validate
from shardwise.roofline.evidence import read_spread

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from fit.spread import (
    Groups,
    by_group,
    coverage,
    fewer,
    score_groups,
    write_spread,
)

pytestmark = pytest.mark.usefixtures("answers_kept")

BETWEEN, WITHIN = 1.5, 0.4
GROUPS, EACH = 30, 6


@pytest.fixture(scope="module")
def drawn():
    """Runs of groups, each with a level of its own, in ranges of one width."""
    first = next(row for row in validate(read_table(TABLE).rows).rows if row.interval)
    random, rows = np.random.default_rng(0), []
    for group in range(GROUPS):
        level = BETWEEN * random.standard_normal()
        for i in range(EACH):
            z = level + WITHIN * random.standard_normal()
            run = replace(
                first.run,
                group=f"group-{group}/any",
                fingerprint=f"{group}-{i}",
                measured_seconds=first.predicted * float(np.exp(0.1 * z)),
                plan=replace(first.run.plan, sequence_length=1024 * (i + 1)),
            )
            half = float(np.exp(0.1 * 1.2816))
            interval = (first.predicted / half, first.predicted * half)
            rows.append(replace(first, run=run, interval=interval))
    return rows


@pytest.fixture(scope="module")
def spread(drawn):
    return Groups(by_group(drawn)).spread()


def test_what_was_drawn_is_found(spread):
    assert spread.between == pytest.approx(BETWEEN, rel=0.3)
    assert spread.within == pytest.approx(WITHIN, rel=0.2)
    assert (spread.runs, spread.groups) == (GROUPS * EACH, GROUPS)


def test_a_group_has_no_part_in_its_own_spread(drawn, spread):
    groups = Groups(by_group(drawn))
    assert groups.spread(without="group-0/any").groups == GROUPS - 1
    assert groups.spread() == spread


def test_three_runs_tell_of_the_others(drawn):
    scores = score_groups(drawn, nested=False, draws=4)
    assert len(scores) == GROUPS
    assert fewer(scores) < 0.6
    assert 0.7 < coverage(scores) < 0.99
    assert scores == score_groups(drawn, draws=4)


def test_rows_of_a_configuration_are_one_look(drawn):
    again = replace(drawn[0], run=replace(drawn[0].run, measured_seconds=2.0, fingerprint="again"))
    found = looks([drawn[0], again, drawn[1]])
    assert [len(one.marks) for one in found] == [2, 1]
    assert found[0].log_ratio == pytest.approx((drawn[0].log_ratio + again.log_ratio) / 2)


def test_a_spread_round_trips_a_file(spread, tmp_path):
    path = tmp_path / "spread.toml"
    write_spread(path, spread, "made up")
    again = read_spread(path)
    assert again.between == pytest.approx(spread.between, abs=1e-3)
    assert again.carried == pytest.approx(spread.carried, abs=1e-3)
