"""validate: errors, ranks, ranges and gates; fitted constants against chip rates alone."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.evidence.training.test_runs import ROWS, TABLE

from shardwise.errors import BadRequest
from shardwise.evidence.training.residuals import MIN_ROWS, residuals, write_residuals
from shardwise.evidence.training.runs import read_runs
from shardwise.evidence.training.table import read_table
from shardwise.evidence.training.validate import (
    RANKED,
    against_size,
    score,
    spearman,
    summarise,
    validate,
    validation_result,
    within_models,
)
from shardwise.hardware import load_chip
from shardwise.roofline.residuals import Residual, groups_of, read_residuals, residual_of

FLAT = {"all": Residual(q10=-0.1, q90=0.2, n=100)}


@pytest.fixture(scope="module")
def found():
    """The packaged rows, priced with one range for all."""
    return validate(ROWS.values(), table=FLAT)


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
    for a, b in zip(score(slow, table=FLAT).rows, found.rows, strict=True):
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
    assert (row["model"], row["n"]) == ("nanotron-llama-1B", RANKED)
    order = spearman([r.mfu for r in some], [r.measured_mfu for r in some])
    assert row["rank_correlation"] == order
    # Tokens/s per chip: 35,325 and 30,186 of the 1B model, 16,385 of the 3B.
    exact = against_size([with_error(r, 0.0) for r in found.rows], source)
    assert exact["predicted"] == 1
    half = against_size(found.rows, source)["one_over_parameters"]
    assert half == pytest.approx(math.sqrt(3) / 2)  # a tie of the two larger, then in order


def test_memory_compares_the_runs_that_publish_it(found):
    published = [r for r in found.rows if r.run.peak_mem_bytes]
    assert found.memory().n == len(published) == 3
    errors = sorted(abs(r.peak_bytes / r.run.peak_mem_bytes - 1) for r in published)
    assert found.memory().median_abs_error == pytest.approx(errors[1])
    assert min(r.run.peak_mem_bytes for r in published) > 1e9


# Constants ----------------------------------------------------------------------------------------


def test_chip_rates_alone_are_never_slower(found):
    ideal = validate(ROWS.values(), efficiency="roofline", table=FLAT)
    assert ideal.efficiency == "roofline"
    for fast, real in zip(ideal.rows, found.rows, strict=True):
        assert fast.run.id == real.run.id
        assert fast.predicted <= real.predicted * (1 + 1e-9)
    assert sum(f.predicted < r.predicted for f, r in zip(ideal.rows, found.rows, strict=True)) > 10


def test_pricing_is_fast_enough_to_be_a_habit(found):
    """The full table has about a dozen times as many rows and should stay well below 20 s."""
    import time

    started = time.process_time()
    validate(ROWS.values(), table=FLAT)
    assert time.process_time() - started < 5


# Ranges -------------------------------------------------------------------------------------------


def test_ranges_stand_around_the_prediction(found):
    for row in found.rows:
        assert row.interval == pytest.approx(
            (row.predicted * math.exp(-0.1), row.predicted * math.exp(0.2))
        )
    inside = [r for r in found.rows if -0.1 <= r.log_ratio <= 0.2]
    assert found.coverage() == pytest.approx(len(inside) / len(found.rows))


def test_own_residuals_cover_about_four_fifths(found):
    table = found.residuals()
    again = validate(ROWS.values(), table={"all": table["all"]})
    assert 0.7 <= again.coverage() <= 0.9


def test_held_out_ranges_have_not_seen_the_group(found):
    runs = read_runs(ROWS.values())[0]
    mine = [r for r in runs if r.source == "nanotron-ultrascale"]
    slow = [replace(r, measured_seconds=r.measured_seconds * (9 if r in mine else 1)) for r in runs]
    before = {r.run.id: r.held_out for r in found.rows}
    unmoved = {
        row.run.id for row in score(slow, table=FLAT).rows if row.held_out == before[row.run.id]
    }
    assert unmoved == {r.id for r in mine}


def test_small_groups_fall_back():
    logs = [("hopper/fsdp", 0.1 * i) for i in range(MIN_ROWS)] + [("v4/xla", 5.0)]
    table = residuals(((group, "all"), log) for group, log in logs)
    assert set(table) == {"hopper/fsdp", "all"}
    assert table["hopper/fsdp"].q10 == pytest.approx(0.07)
    assert residual_of(table, ("v4/xla", "v4", "all")) is table["all"]
    assert residual_of({}, ("all",)) is None


def test_groups_of_a_chip():
    assert groups_of(load_chip("h200"), "xla") == ("hopper/xla", "hopper", "gpu", "all")
    assert groups_of(load_chip("v5p"), "xla") == ("v5p/xla", "v5p", "tpu", "all")


def test_residuals_round_trip_a_file(tmp_path):
    table = {"hopper/xla": Residual(q10=-0.25, q90=0.5, n=12), **FLAT}
    path = tmp_path / "residuals.toml"
    write_residuals(path, table, "a test")
    assert dict(read_residuals(path)) == table
    (tmp_path / "bad.toml").write_text("groups = 3\n")
    with pytest.raises(BadRequest, match="no table of residuals"):
        read_residuals(tmp_path / "bad.toml")


def test_the_packaged_residuals_are_ranges():
    table = read_residuals()
    assert "all" in table
    assert all(r.q10 < r.q90 and r.n > 0 for r in table.values())


# Document -----------------------------------------------------------------------------------------


def test_result_has_the_names_of_the_design(found):
    result = validation_result(found)
    numbers = {"n", "median_abs_error", "p90_abs_error", "rank_correlation"}
    assert numbers <= set(result["summary"])
    for group in ("by_group", "by_source", "by_chip", "by_bound", "by_grade", "by_stack", "gates"):
        assert all(numbers <= set(s) for s in result["summary"][group].values()), group
    assert all(
        {"id", "predicted", "measured", "error", "interval"} <= set(row) for row in result["rows"]
    )
    assert result["left_out"] == []
    assert set(result["coverage"]) == {"in_sample", "held_out_by_group"}


def test_progress_counts_the_runs():
    seen = []
    validate(list(ROWS.values())[:3], table=FLAT, progress=lambda done, n: seen.append((done, n)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_table_of_this_test_cites_its_facts():
    assert Path(TABLE).is_file()
    assert all(row["citation"] for row in read_table(TABLE).rows)
