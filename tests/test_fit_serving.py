"""scripts/fit_serving.py: constants that made the times are found again from the times."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.evidence.serving.runs import PUBLISHED_SERVING, ServingTable, read_serving
from shardwise.evidence.serving.times import features
from shardwise.roofline.engines import engine_of

pytest.importorskip("scipy")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import fit_serving  # noqa: E402
from fit.serving import NAMES, PRIORS, engine_at, fit_families  # noqa: E402

TRUE = {"vllm": (6e-6, 3e-5, 0.8, 0.1), "trtllm": (2e-6, 5e-6, 0.3, 0.4)}


@pytest.fixture(scope="module")
def groups():
    """Published configurations with the times that known constants give them."""
    table = read_serving(PUBLISHED_SERVING)
    chosen = [
        r for r in table.runs if r.family in TRUE and r.model in ("llama-3.1-70b", "qwen3-32b")
    ]
    made = []
    for group in features(chosen):
        times = {f: group.times(engine_at(f, values)) for f, values in TRUE.items()}
        runs = tuple(
            replace(
                run, tpot=float(times[run.family].tpot[i]), ttft=float(times[run.family].ttft[i])
            )
            for i, run in enumerate(group.runs)
        )
        made.append(replace(group, runs=runs))
    return made


@pytest.fixture(scope="module")
def runs(groups):
    return [run for group in groups for run in group.runs]


def test_constants_are_found_again(groups, runs):
    found = fit_families(groups, runs)
    for family, values in TRUE.items():
        for name, value in zip(NAMES, values, strict=True):
            # The priors pull a little, in what few runs tell.
            assert getattr(found[family], name) == pytest.approx(value, rel=0.1, abs=2e-8), name


def test_without_runs_a_family_has_its_priors(groups, runs):
    found = fit_families(groups, runs, keep=lambda run: run.family != "vllm")
    assert all(getattr(found["vllm"], n) == pytest.approx(PRIORS[n].value) for n in NAMES)


def test_what_is_written_can_be_read(groups, runs):
    table = ServingTable(rows=len(runs), runs=tuple(runs), left_out={"a reason": 3})
    engines = fit_families(groups, runs)
    rows = fit_serving.price_with(groups, engines, runs)
    left = [*fit_serving.left_out(groups, table, rows, what="chip")]
    assert {x.name for x in left} == {run.chip for run in runs}
    left += fit_serving.left_out(groups, table, rows, what="model")
    page = fit_serving.report("2026-01-02", table, rows, engines, left, groups)
    assert "| 3 | a reason |" in page
    text = fit_serving.engines_toml(engines, left, runs, "2026-01-02")
    for name, record in tomllib.loads(text).items():
        assert engine_of(name, record).name == name
        low, high = engine_of(name, record).range
        assert 0.5 < low <= high < 2
