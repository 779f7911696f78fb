"""How right the serving planner is on runs that no fit has seen: the bounds that it must hold.

The bounds are what is wanted, not what was reached. The left-out predictions are made by
scripts/fit_serving.py; `test_a_fold_made_again` makes one of its folds again from the table.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from shardwise.evidence.serving import validate
from shardwise.evidence.serving.runs import PUBLISHED_SERVING, read_serving
from shardwise.evidence.serving.times import features
from shardwise.evidence.serving.validate import (
    FOLDS,
    read_left_out,
    tpot_summary,
    ttft_summary,
    validate_serving,
)
from shardwise.evidence.serving.validation_result import serving_runs
from shardwise.hardware.chip import EFFICIENCIES
from shardwise.roofline.engines import ENGINE_CONSTANTS, first_token_class, first_token_range

DENSE, MIXTURES, ALL, P90, TTFT = 0.09, 0.16, 0.125, 0.36, 0.29
MODEL, MODEL_P90, APART = 0.11, 0.33, 0.15
RANGES = (0.75, 0.85)
FIRST_RANGES, CLASS = (0.75, 0.88), 30
RUNS = 2400

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))


@pytest.fixture(scope="module")
def runs():
    return read_serving(PUBLISHED_SERVING).runs


@pytest.fixture(scope="module")
def counted(runs):
    """What the steps of all runs take, counted once: that is nearly all of the time."""
    found = features(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validate, "features", lambda *_: found)
        yield found


@pytest.fixture(scope="module")
def found(counted):
    return validate_serving(read_serving(PUBLISHED_SERVING))


@pytest.fixture(scope="module")
def left():
    return read_left_out()


def test_every_run_was_left_out_once(runs, left):
    assert left.ids == tuple(run.id for run in runs)
    assert len(runs) >= RUNS
    for fold in FOLDS:
        assert np.isfinite(left.tpot[fold]).all()
        assert np.isfinite(left.ttft[fold]).all()


@pytest.mark.parametrize("fold", FOLDS)
def test_time_per_output_token_left_out(runs, left, fold):
    error = np.abs(left.tpot[fold] / np.array([run.tpot for run in runs]) - 1)
    mixture = np.array([run.mixture for run in runs])
    assert np.median(error[~mixture]) <= DENSE
    assert np.median(error[mixture]) <= MIXTURES
    assert np.median(error) <= ALL
    assert np.quantile(error, 0.9) <= P90


def test_time_per_output_token_of_a_model_that_no_fit_has_seen(runs, left):
    error = np.abs(left.tpot["model"] / np.array([run.tpot for run in runs]) - 1)
    assert np.median(error) <= MODEL
    assert np.quantile(error, 0.9) <= MODEL_P90


def test_attention_of_parts_of_the_batch_left_out(runs, left):
    """Attention by the batch, mostly with experts apart over the same devices."""
    apart = np.array([run.data > 1 for run in runs])
    error = np.abs(left.tpot["model"] / np.array([run.tpot for run in runs]) - 1)[apart]
    assert apart.sum() > 200
    assert np.median(error) <= APART
    assert np.quantile(error, 0.9) <= MODEL_P90


@pytest.mark.parametrize("fold", FOLDS)
def test_time_to_the_first_token_left_out(runs, left, fold):
    told = np.array([run.ttft is not None for run in runs])
    measured = np.array([run.ttft or 1.0 for run in runs])
    error = np.abs(left.ttft[fold] / measured - 1)[told]
    assert np.median(error) <= TTFT


@pytest.mark.parametrize("fold", FOLDS)
def test_ranges_hold_left_out(runs, left, fold):
    low, high = left.intervals[fold].T
    ratio = np.array([run.tpot for run in runs]) / left.tpot[fold]
    assert RANGES[0] <= ((low <= ratio) & (ratio <= high)).mean() <= RANGES[1]


def test_ranges_of_first_tokens_hold_in_every_class_of_a_model_left_out(runs, left):
    told = [i for i, run in enumerate(runs) if run.ttft is not None]
    low, high = left.first_intervals["model"].T
    ratio = np.array([runs[i].ttft / left.ttft["model"][i] for i in told])
    inside = (low <= ratio) & (ratio <= high)
    classes = np.array([class_name(runs[i]) for i in told])
    assert len(set(classes)) >= 6
    for name in set(classes):
        mine = inside[classes == name]
        assert len(mine) < CLASS or FIRST_RANGES[0] <= mine.mean() <= FIRST_RANGES[1], name


def class_name(run):
    each = run.concurrency / run.workers
    kind = first_token_class(run.family, pools=run.prefill is not None, in_flight=each)
    assert all(0 < end < np.inf for end in first_token_range(kind))
    return kind.name


@pytest.mark.slow
def test_a_fold_made_again(runs, left, counted):
    """The runs of one chip by the fit of all others are those that are written down."""
    pytest.importorskip("scipy")
    from fit.serving import begin, fit_engines, stacked

    parts = stacked(counted)
    fold = fit_engines(parts, begin(runs), lambda run: run.chip != "a100")
    place = {name: i for i, name in enumerate(left.ids)}
    part = next(p for p in parts if any(run.chip == "a100" for run in p.runs))
    times = part.times(fold.over(part.runs))
    mine = [i for i, run in enumerate(part.runs) if run.chip == "a100"]
    written = [left.tpot["chip"][place[part.runs[i].id]] for i in mine]
    assert np.asarray(times.tpot)[mine] == pytest.approx(written, rel=0.02)


@pytest.mark.slow
def test_every_run_is_priced_with_few_constants(found):
    assert len(found.rows) == len(found.table.runs) >= RUNS
    assert all(np.isfinite([r.tpot, r.ttft]).all() and r.tpot > 0 for r in found.rows)
    assert len(ENGINE_CONSTANTS) <= 4
    assert len(EFFICIENCIES) + 1 <= 8


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vllm", "sglang", "trtllm"])
def test_time_per_output_token_of_each_engine_in_sample(found, family):
    assert found.by(lambda r: r.run.family)[family].median_abs_error <= ALL


@pytest.mark.slow
def test_the_document_leads_with_what_was_left_out(found, runs):
    result = serving_runs(found)
    assert set(result.left_out) == set(FOLDS)
    for fold in FOLDS:
        assert result.left_out[fold].tpot.n == len(runs)
        assert result.left_out[fold].tpot.median_abs_error <= ALL
    assert result.summary.n == len(runs)
    assert set(result.summary.by_release) > {"vllm 0.12", "trtllm 1.0"}


@pytest.mark.slow
def test_throughput_is_concurrency_over_tpot(found):
    row = serving_runs(found).rows[0]
    run = found.rows[0].run
    assert row.tokens_per_second_measured == pytest.approx(run.concurrency / run.tpot)
    assert tpot_summary(found.rows).rank_correlation > 0.9


@pytest.mark.slow
def test_the_engines_constants_are_worth_having(found):
    roofline = validate_serving(found.table, efficiency="roofline")
    without = tpot_summary(roofline.rows).median_abs_error
    assert tpot_summary(found.rows).median_abs_error < 2 / 3 * without
    assert ttft_summary(found.rows).median_abs_error < 0.5
