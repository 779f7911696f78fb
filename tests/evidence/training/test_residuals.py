"""The table behind ranges: made of samples, left out by group, wider for what few have run."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwise.planner.features import FEATURES
from shardwise.roofline.residuals import read_residuals

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from fit.residuals import Sample, Samples, write_residuals

USUAL = dict.fromkeys(FEATURES, "usual")


def samples(groups=8, runs=12, spread=0.1, **features) -> list[Sample]:
    """Runs of several groups whose misses are normal: the same in whatever order tests run."""
    values, dice = {**USUAL, **features}, np.random.default_rng([groups, runs, len(features)])
    return [
        Sample(
            features=values,
            group=f"p{g}/x",
            moe=False,
            share=1.0,
            log_ratio=float(log),
            unlike={name: 2 * float(log) for name in FEATURES},
        )
        for g in range(groups)
        for log in dice.normal(0.0, spread, runs)
    ]


def table(some):
    return Samples(some).table(np.ones(len(some), bool))


@pytest.fixture(scope="module")
def mixed() -> list[Sample]:
    """Eight groups that are missed by a tenth on a usual chip, three of them by more on another."""
    return [*samples(), *samples(groups=3, spread=0.3, chip="rare")]


def test_eight_of_ten_runs_are_inside(mixed):
    found = table(mixed)
    inside = [
        found.range_of(s.features).low <= s.log_ratio <= found.range_of(s.features).high
        for s in mixed
    ]
    assert 0.75 <= np.mean(inside) <= 0.95


def test_what_is_missed_by_more_is_wider(mixed):
    found = table(mixed)
    chip = found.features["chip"].values
    assert chip["rare"].wider > 1.2 * chip["usual"].wider
    assert (chip["rare"].runs, chip["rare"].groups) == (36, 3)


def test_one_publisher_is_widened_by_half_of_what_nobody_is():
    """In log, beside what its own misses say."""
    found = table([*samples(), *samples(groups=1, chip="rare")])
    chip = found.features["chip"]
    assert 1.0 < chip.values["usual"].wider < chip.values["rare"].wider < chip.unseen


def test_late_runs_make_a_range_later(mixed):
    late = [replace(s, log_ratio=abs(s.log_ratio)) if s.features["chip"] == "rare" else s
            for s in mixed]  # fmt: skip
    chip = table(late).features["chip"].values
    assert chip["rare"].later > 1.0 > chip["usual"].later


def test_a_fold_has_no_part_in_what_is_said_of_it(mixed):
    """Its runs may be anything."""
    arrays = Samples(mixed)
    rows, others = next(iter(arrays.folds(np.ones(len(mixed), bool))))
    mad = [replace(s, log_ratio=9.0) if out else s for s, out in zip(mixed, rows, strict=True)]
    before, after = arrays.table(others), Samples(mad).table(others)
    assert after.low == pytest.approx(before.low, rel=0.02)
    assert after.high == pytest.approx(before.high, rel=0.02)


def test_routed_runs_leave_out_their_publisher():
    routed = [replace(s, moe=True) for s in samples(groups=2)]
    kin = [replace(s, group="p0/y", moe=True) for s in samples(groups=1)]
    dense = [replace(s, group="p0/z") for s in samples(groups=1)]
    arrays = Samples([*routed, *kin, *dense])
    left = {arrays.groups[rows][0]: set(arrays.groups[~others & ~rows])
            for rows, others in arrays.folds(np.ones(len(arrays.logs), bool))}  # fmt: skip
    assert left == {"p0/x": {"p0/y"}, "p1/x": set(), "p0/y": {"p0/x"}, "p0/z": set()}


def test_a_table_round_trips_a_file(mixed, tmp_path):
    found = table(mixed)
    write_residuals(tmp_path / "residuals.toml", found, "a test")
    again = read_residuals(tmp_path / "residuals.toml")
    assert again.low == pytest.approx(found.low, abs=1e-4)
    for name, feature in found.features.items():
        for value, effect in feature.values.items():
            assert again.features[name].values[value].wider == pytest.approx(effect.wider, abs=1e-3)
