"""validate: errors, ranks, ranges and gates; fitted constants against chip rates alone."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.evidence.training.test_runs import ROWS, TABLE

from shardwise.boundary.records import plain
from shardwise.errors import BadRequest
from shardwise.evidence.training.runs import read_runs
from shardwise.evidence.training.scores import spearman
from shardwise.evidence.training.table import read_table, row_of
from shardwise.evidence.training.unseen import UnseenPrediction, fingerprint, read_unseen
from shardwise.evidence.training.validate import (
    CLASS_RUNS,
    RANKED,
    Validation,
    against_size,
    score,
    summarise,
    validate,
    within_models,
)
from shardwise.evidence.training.validation_result import training_runs
from shardwise.roofline.residuals import RangeTable

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from fit.outputs import write_unseen

FLAT = RangeTable(features={}, low=-0.1, high=0.2, runs=100, groups=5)
NONE: dict[str, UnseenPrediction] = {}
"""No run is one of the fit's."""


@pytest.fixture(scope="module")
def found():
    """The packaged rows, priced with one range for all."""
    return validate(ROWS.values(), table=FLAT, unseen=NONE)


# Numbers ------------------------------------------------------------------------------------------


def test_error_is_predicted_over_measured_less_one(found):
    for row in found.rows:
        assert row.error == pytest.approx(row.predicted / row.measured - 1)
        assert row.log_ratio == pytest.approx(-math.log1p(row.error))
        assert row.measured_mfu * row.measured == pytest.approx(row.mfu * row.predicted)
        assert row.bounds[0] <= row.predicted <= row.bounds[1]


def test_a_measurement_twice_as_long_halves_one_plus_error(found):
    runs, _ = read_runs(ROWS.values())
    slow = [replace(r, measured_seconds=2 * r.measured_seconds) for r in runs]
    for a, b in zip(score(slow, table=FLAT, unseen=NONE).rows, found.rows, strict=True):
        assert 1 + a.error == pytest.approx((1 + b.error) / 2)
        assert a.predicted == b.predicted


def test_summary_of_known_errors(found):
    """Errors of -10 %, 0, +20 % and +50 %: their sizes have the median 15 %, 90 % below 41 %."""
    some = [with_error(row, e) for row, e in zip(found.rows, (-0.1, 0.0, 0.2, 0.5), strict=False)]
    summary = summarise(some)
    assert summary.n == 4
    assert summary.median_abs_error == pytest.approx(0.15)
    assert summary.p90_abs_error == pytest.approx(0.41)
    assert summary.median_error == pytest.approx(0.1)


def with_error(row, error):
    """The row with a measurement that makes its error this."""
    return replace(row, run=replace(row.run, measured_seconds=row.predicted / (1 + error)))


def test_perfect_predictions_rank_perfectly(found):
    exact = summarise([with_error(row, 0.0) for row in found.rows])
    assert exact.median_abs_error == pytest.approx(0, abs=1e-12)
    assert exact.rank_correlation == pytest.approx(1)


def test_no_rows_have_no_medians():
    summary = summarise([])
    assert (summary.n, summary.median_abs_error, summary.rank_correlation) == (0, None, None)


def test_spearman():
    assert spearman([1, 2, 3, 4], [2, 4, 6, 9]) == 1
    assert spearman([1, 2, 3, 4], [9, 6, 4, 2]) == -1
    # Ties take their mean rank: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearman([1, 5, 5, 7], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([3, 3, 3], [1, 2, 3]) is None


def test_groups_and_gates_partition_the_rows(found):
    everything = len(found.rows)
    for key in (lambda r: r.run.source, lambda r: r.run.chip, lambda r: r.bound_by):
        assert sum(s.n for s in found.by(key).values()) == everything
    gates = {name: s.n for name, s in found.gates().items()}
    assert gates["all"] == gates["grade A"] + gates["grade B"] == gates["TPU"] + gates["GPU"]
    dense = gates["dense, 16 bit"] + gates["dense, fp8 or narrower"]
    assert dense + gates["mixture of experts"] == everything
    assert 0 < gates["pipelined"] < everything


def test_rank_within_models_and_against_size(found):
    source = "nanotron-ultrascale"
    assert within_models(found.rows) == []  # no model has enough runs
    one = next(r for r in found.rows if r.run.source == source)
    some = [
        replace(one, mfu=0.3 + i / 100, run=replace(one.run, measured_seconds=one.measured + i))
        for i in range(RANKED)
    ]
    assert within_models(some[1:]) == []
    (row,) = within_models(some)
    assert (row.model, row.n) == ("nanotron-llama-1B", RANKED)
    order = spearman([r.mfu for r in some], [r.measured_mfu for r in some])
    assert row.rank_correlation == order
    # Tokens/s per chip: 35,325 and 30,186 of the 1B model, 16,385 of the 3B.
    exact = against_size([with_error(r, 0.0) for r in found.rows], source)
    assert exact.predicted == 1
    half = against_size(found.rows, source).one_over_parameters
    assert half == pytest.approx(math.sqrt(3) / 2)  # a tie of the two larger, then in order


def test_memory_compares_the_runs_that_publish_it(found):
    published = [r for r in found.rows if r.run.peak_mem_bytes]
    assert found.memory().n == len(published) == 3
    errors = sorted(abs(r.peak_bytes / r.run.peak_mem_bytes - 1) for r in published)
    assert found.memory().median_abs_error == pytest.approx(errors[1])
    assert min(r.run.peak_mem_bytes for r in published) > 1e9


# Constants ----------------------------------------------------------------------------------------


def test_chip_rates_alone_are_never_slower(found):
    ideal = validate(ROWS.values(), efficiency="roofline")
    assert ideal.efficiency == "roofline"
    for fast, real in zip(ideal.rows, found.rows, strict=True):
        assert fast.run.id == real.run.id
        assert fast.predicted <= real.predicted * (1 + 1e-9)
    assert sum(f.predicted < r.predicted for f, r in zip(ideal.rows, found.rows, strict=True)) > 10


def test_pricing_is_fast_enough_to_be_a_habit(found):
    """The full table has about a dozen times as many rows and should stay well below 20 s."""
    import time

    started = time.process_time()
    validate(ROWS.values(), table=FLAT, unseen=NONE)
    assert time.process_time() - started < 5


# Ranges -------------------------------------------------------------------------------------------


def test_ranges_stand_around_the_prediction(found):
    for row in found.rows:
        assert row.interval == pytest.approx(
            (row.predicted * math.exp(-0.1), row.predicted * math.exp(0.2))
        )
    inside = [r for r in found.rows if -0.1 <= r.log_ratio <= 0.2]
    assert found.coverage() == pytest.approx(len(inside) / len(found.rows))


def test_chip_rates_alone_have_no_range():
    alone = validate(list(ROWS.values())[:3], efficiency="roofline")
    assert all(row.interval is None for row in alone.rows)
    assert alone.coverage() is None


def test_a_class_of_runs_has_thirty_of_three_groups(found):
    """Of a value of a feature: fewer say too little of how often ranges hold."""
    one = found.rows[0]
    many = [
        replace(one, features={"mlp": "dense"}, run=replace(one.run, group=f"g{i % 3}"))
        for i in range(CLASS_RUNS)
    ]
    classes = Validation(efficiency="fitted", rows=tuple(many), left_out=()).coverage_by_class()
    assert classes == {"mlp: dense": (CLASS_RUNS, float(bool(one.inside)))}
    few = Validation(efficiency="fitted", rows=tuple(many[1:]), left_out=())
    assert few.coverage_by_class() == {}
    alone = [replace(row, run=one.run) for row in many]
    assert Validation(efficiency="fitted", rows=tuple(alone), left_out=()).coverage_by_class() == {}


# Runs of the fit ----------------------------------------------------------------------------------


def seen(row, **changes) -> dict[str, UnseenPrediction]:
    """The run of a row as one of the fit's: a tenth slower without its group."""
    one = UnseenPrediction(
        fingerprint=row.run.fingerprint,
        predicted=1.1 * row.predicted,
        fitted=row.predicted,
        constant_mfu=2 * row.predicted,
        low=row.predicted,
        high=1.5 * row.predicted,
        why="no published run on this chip",
    )
    one = replace(one, **changes)
    return {one.fingerprint: one}


def test_a_run_of_the_fit_is_predicted_without_its_group(found):
    first = found.rows[0]
    again = score([r.run for r in found.rows], table=FLAT, unseen=seen(first))
    row = again.rows[0]
    assert row.in_sample == first.predicted
    assert row.predicted == pytest.approx(1.1 * first.predicted)
    assert row.mfu == pytest.approx(first.mfu / 1.1)
    assert row.interval == pytest.approx((first.predicted, 1.5 * first.predicted))
    assert row.range_why == "no published run on this chip"
    assert again.rows[1] == found.rows[1]
    assert again.in_sample().n == again.constant_mfu().n == 1
    assert again.in_sample().median_error == pytest.approx(first.error)
    assert again.constant_mfu().median_error == pytest.approx(1 + 2 * first.error)


def test_a_run_that_was_not_fitted_on_has_no_in_sample_error(found):
    first = found.rows[0]
    judge = replace(first.run, fitted=False)
    row = score([judge], table=FLAT, unseen=seen(first)).rows[0]
    assert row.in_sample is None
    assert row.predicted == pytest.approx(1.1 * first.predicted)


def test_a_model_of_the_step_that_changed_takes_its_left_out_figures_along(found):
    """What the fit wrote stands relative to what the constants said then."""
    first = found.rows[0]
    table = seen(first, predicted=2.2 * first.predicted, fitted=2 * first.predicted)
    row = score([first.run], table=FLAT, unseen=table).rows[0]
    assert row.predicted == pytest.approx(1.1 * first.predicted)
    assert row.interval == pytest.approx((first.predicted / 2, 0.75 * first.predicted))


def test_a_run_is_found_by_its_facts_not_by_its_name():
    cells = next(iter(ROWS.values()))
    named = {**cells, "id": "x", "source": "y", "citation": "z", "notes": "n", "grade": "B"}
    assert fingerprint(row_of(cells)) == fingerprint(row_of(named))
    assert fingerprint(row_of(cells)) != fingerprint(row_of({**cells, "seq_len": "4097"}))


def test_left_out_runs_round_trip_a_file(found, tmp_path):
    table = seen(found.rows[0])
    write_unseen(tmp_path / "runs.csv", table.values())
    (name, one), *_ = read_unseen(tmp_path / "runs.csv").items()
    assert one.predicted == pytest.approx(table[name].predicted, rel=1e-3)
    assert one.why == table[name].why
    (tmp_path / "bad.csv").write_text("fingerprint\nabc\n")
    with pytest.raises(BadRequest, match="no table of left-out runs"):
        read_unseen(tmp_path / "bad.csv")


# Document -----------------------------------------------------------------------------------------


def test_result_has_the_names_of_the_design(found):
    result = plain(training_runs(found))
    numbers = {"n", "median_abs_error", "p90_abs_error", "rank_correlation"}
    assert numbers <= set(result["summary"])
    for group in ("by_group", "by_source", "by_chip", "by_bound", "by_grade", "by_stack", "gates"):
        assert all(numbers <= set(s) for s in result["summary"][group].values()), group
    assert all(
        {"id", "predicted", "measured", "error", "interval"} <= set(row) for row in result["rows"]
    )
    assert result["left_out"] == []
    assert numbers <= set(result["summary"]["in_sample"])
    assert numbers <= set(result["summary"]["constant_mfu"])
    assert set(result["coverage"]) == {"all", "by_class"}


def test_progress_counts_the_runs():
    seen = []
    validate(
        list(ROWS.values())[:3],
        table=FLAT,
        unseen=NONE,
        progress=lambda done, n: seen.append((done, n)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_table_of_this_test_cites_its_facts():
    assert Path(TABLE).is_file()
    assert all(row["citation"] for row in read_table(TABLE).rows)
