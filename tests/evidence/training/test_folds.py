"""Folds, configurations and releases of published runs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.evidence.training.test_runs import row

from shardwise.evidence.training.runs import read_run
from shardwise.evidence.training.table import PUBLISHED, read_table

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from fit.kin import left_with, shares
from fit.regressions import SLOWER, regressions


@pytest.fixture(scope="module")
def run():
    return replace(read_run(row()), group="a/x", release="2025.01")


def test_a_fold_is_publisher_and_software(run):
    assert left_with(run, replace(run, id="another"))
    assert not left_with(run, replace(run, group="a/y"))
    assert not left_with(run, replace(run, group="b/x"))


def test_routed_runs_are_left_out_with_all_of_their_publisher(run):
    routed = replace(run, moe=True)
    assert left_with(routed, replace(routed, group="a/y"))
    assert not left_with(routed, replace(run, group="a/y"))
    assert not left_with(routed, replace(routed, group="b/y"))


def test_rows_of_a_configuration_share_its_weight(run):
    """Meshes, releases and repeats are one configuration; another batch or publisher is not."""
    plan = run.plan
    same = [run, replace(run, release="2026"), replace(run, plan=replace(plan, zero=1))]
    other = replace(run, plan=replace(plan, global_batch_sequences=128))
    assert shares([*same, other, replace(run, group="b/x")]) == pytest.approx([1 / 3] * 3 + [1] * 2)


def test_a_later_release_that_is_slower_is_a_regression(run):
    def ran(release, seconds):
        return replace(run, id=release, release=release, measured_seconds=seconds)

    runs = [ran("2026.06", 4.04), ran("2025.11", 2.48), ran("2026.04", 2.5)]
    (found,) = regressions(runs)
    assert (found.before.id, found.after.id) == ("2025.11", "2026.06")
    assert found.times == pytest.approx(4.04 / 2.48)
    assert regressions([ran("2025.11", 1.0), ran("2026.04", 0.99 * SLOWER)]) == []
    other = replace(ran("2026.06", 9.0), plan=replace(run.plan, microbatches=32))
    assert regressions([runs[1], other]) == []


def test_published_groups_are_publisher_and_software():
    """All of NVIDIA's recipes are one."""
    rows = read_table(PUBLISHED).rows
    assert all(one["group"].count("/") == 1 for one in rows)
    recipes = [r for r in rows if "megatron-bridge" in r["source"] or "-nemo" in r["source"]]
    assert {one["group"] for one in recipes} == {"nvidia/nemo"}
    assert all(one["release"] for one in rows)
