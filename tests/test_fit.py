"""scripts/fit_efficiency.py: constants that made the times are found again from the times."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwise.evidence.training.runs import read_runs
from shardwise.evidence.training.table import read_table

pytest.importorskip("scipy")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from fit import leave_out, outputs  # noqa: E402
from fit.constants import CHIP_KINDS, GENERATIONS, STACK_KINDS, kind_of, names  # noqa: E402
from fit.explain import explain  # noqa: E402
from fit.solve import Prior, at, case_of, fit_all, seconds  # noqa: E402

TABLE = ROOT / "src" / "shardwise" / "evidence" / "training" / "data" / "training_runs.csv"


def is_small(row: dict[str, str]) -> bool:
    """Dense runs of one stage on an H100: quick to count, told apart by size and length."""
    return (
        row["source"].startswith(("mosaicml", "nanotron"))
        and row["hardware"].startswith("H100")
        and (row["pp"] or "1") == "1"
        and row["compute_dtype"] == "bf16"
    )


@pytest.fixture(scope="module")
def cases():
    runs, _ = read_runs([row for row in read_table(TABLE).rows if is_small(row)][::3])
    return [case_of(run) for run in runs]


@pytest.fixture(scope="module")
def priors():
    owners = ("hopper", "fsdp", "nanotron")
    start = {"sustained": 0.8, "matmul_ramp": 5e-6, "launch_seconds": 5e-6, "passes": 2.0}
    return {
        name: Prior(
            value=start.get(name.partition(".")[2], 0.6),
            sigma=kind_of(name).scale * 20,  # the runs decide
            source="a test",
        )
        for name in names()
        if name.split(".")[0] in owners
    }


@pytest.fixture(scope="module")
def truth(priors):
    """Other values than the priors', inside the bounds."""
    chosen = {"hopper.sustained": 0.9, "hopper.attention": 0.7, "hopper.outer_network": 0.8}
    chosen |= {"nanotron.passes": 2.6, "fsdp.passes": 1.5, "fsdp.attention": 0.5}
    return {name: chosen.get(name, p.value) for name, p in priors.items()}


@pytest.fixture(scope="module")
def made(cases, truth):
    """The same runs, measured on the machine of `truth`."""
    return [
        replace(c, run=replace(c.run, measured_seconds=float(seconds(c, truth)))) for c in cases
    ]


@pytest.fixture(scope="module")
def fitted(made, priors):
    return fit_all(made, priors)


def test_the_constants_behind_the_times_are_found_again(made, priors, truth, fitted):
    before = at(made, {n: p.value for n, p in priors.items()}, priors)
    fit, _ = fitted
    assert np.median(np.abs(before.residuals)) > 0.05
    assert np.max(np.abs(fit.residuals)) < 0.02
    # What every run feels is recovered; what nearly none does may stay at its prior.
    for name in ("hopper.sustained", "nanotron.passes", "fsdp.passes"):
        assert fit.values[name] == pytest.approx(truth[name], rel=0.05), name


def test_a_run_with_a_mistake_does_not_drag_the_rest(made, priors, truth, fitted):
    wrong = replace(made[0], run=replace(made[0].run, measured_seconds=1e3))
    fit, _ = fit_all([wrong, *made[1:]], priors)
    assert fit.values["hopper.sustained"] == pytest.approx(truth["hopper.sustained"], rel=0.05)
    assert np.median(np.abs(fit.residuals[1:])) < 0.02


def test_it_says_what_determines_a_constant(made, priors, fitted):
    fit, cases = fitted
    found = explain(fit, cases, priors)
    assert set(found) == set(priors)
    assert found["nanotron.passes"].single == "nanotron-ultrascale"
    assert found["hopper.sustained"].single == ""
    assert "nanotron-ultrascale" in found["nanotron.passes"].source
    for e in found.values():
        assert min(e.rises) >= -0.05, e.name  # a minimum, but for what the last round left


def test_a_source_left_out_is_predicted_from_the_others(made, priors, fitted):
    fit, cases = fitted
    left = {s.source: s for s in leave_out.leave_out(fit, cases, priors)}
    assert set(left) == {"mosaicml-llm-foundry", "nanotron-ultrascale"}
    for s in left.values():
        assert s.other_chip
        assert not s.other_stack
        assert len(s.left) == len(s.fitted) > 3
        assert np.median(np.abs(s.left)) >= np.median(np.abs(s.fitted))


def test_at_most_eight_constants_a_generation_and_four_a_stack():
    measured = ("matmul", "hbm", "network")
    assert len(CHIP_KINDS) + len(measured) <= 8
    assert len(STACK_KINDS) <= 4
    chips = [chip for group in GENERATIONS.values() for chip in group]
    assert len(chips) == len(set(chips))


def test_what_is_written_reads_back(fitted, priors):
    fit, cases = fitted
    found = explain(fit, cases, priors)
    everything = {
        name: found.get(name) or replace(found["hopper.sustained"], name=name, value=0.5)
        for name in names()
    }
    hopper, others = (
        tomllib.loads(outputs.generation_toml(name, everything, "a day"))
        for name in ("hopper", "others")
    )
    assert hopper["sustained"]["value"] == pytest.approx(fit.values["hopper.sustained"], rel=0.01)
    assert set(hopper) == {*CHIP_KINDS}
    assert set(others) == {*CHIP_KINDS} - {"matmul_fp8"}
    stacks = tomllib.loads(outputs.stacks_toml(everything, "a day"))
    assert stacks["fsdp"]["passes"]["value"] == pytest.approx(fit.values["fsdp.passes"], rel=0.01)
