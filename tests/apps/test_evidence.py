"""`--evidence RUNS.csv`: a few runs of one's own move and narrow answers about plans like them."""

import csv

import pytest
from tests.apps.commands import document, flat, run

from shardwise.commands.tables.validate import validate

pytestmark = pytest.mark.usefixtures("answers_kept")

JOB = ("--model", "llama-3.2-1b", "--on", "h100:8", "--batch", "64seq", "--seq", "4096")
TRAIN = ("plan", "train", *JOB, "--for", "torchtitan")
ROW = {
    "model": "llama-3.2-1b",
    "hardware": "h100",
    "num_devices": "8",
    "fsdp": "8",
    "stack": "fsdp",
    "compiled": "true",
    "compute_dtype": "bf16",
    "param_dtype": "f32",
    "micro_batch": "1",
    "global_batch_seqs": "64",
    "seq_len": "4096",
    "remat": "none",
}


def table(path, times=(1.0, 1.0, 1.0), **changes):
    """Runs of one job in several lengths, each so many times as long as predicted."""
    rows = [
        {"id": f"run-{i}", **ROW, "seq_len": str(1024 << i), **changes, "step_seconds": "1"}
        for i in range(len(times))
    ]
    written(path, rows)
    return path if times == (1.0,) else timed(path, rows, times)


def written(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def timed(path, rows, times):
    """The rows with the seconds that are so many times what is predicted of them."""
    predicted = [row["predicted"] for row in validate(path).result["rows"]]
    for row, seconds, factor in zip(rows, predicted, times, strict=True):
        row["step_seconds"] = str(seconds * factor)
    written(path, rows)
    return path


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """Three runs a third slower than predicted."""
    return table(tmp_path_factory.mktemp("own") / "RUNS.csv", (4 / 3, 4 / 3, 4 / 3))


def width(found) -> float:
    return found["high"] / found["low"]


def test_a_plan_is_moved_and_its_range_narrowed(capsys, late):
    usual = document(capsys, *TRAIN)["result"]
    moved = document(capsys, *TRAIN, "--evidence", late)["result"]
    own = moved["expected_80"]["evidence"]
    assert usual["expected_80"]["evidence"] is None
    assert (own["table"], own["rows"], own["like"]) == ("RUNS.csv", 3, 3)
    assert 1.05 < own["times"] < 4 / 3
    times = moved["step_seconds"]["expected"] / usual["step_seconds"]["expected"]
    assert times == pytest.approx(own["times"])
    assert usual["tokens_per_second"] / moved["tokens_per_second"] == pytest.approx(times)
    assert usual["mfu"] / moved["mfu"] == pytest.approx(times)
    assert sum(moved["where_it_goes"].values()) == pytest.approx(moved["step_seconds"]["expected"])
    assert own["low"] == pytest.approx(usual["expected_80"]["low"])
    assert width(moved["expected_80"]) < width(own) == pytest.approx(width(usual["expected_80"]))
    step = moved["step_seconds"]
    assert step["lower"] <= step["expected"] <= step["upper"]
    for now, before in zip(moved["close"], usual["close"], strict=True):
        assert now["mesh"] == before["mesh"]
        assert now["times_slower"] == pytest.approx(before["times_slower"])


@pytest.mark.parametrize("factor", [1.5, 0.7])
def test_what_runs_say_is_a_line_of_the_table_and_math_at_peak_stays(capsys, tmp_path, factor):
    """Where they lost the time nobody knows; what a chip multiplies at peak no run can change."""
    own = table(tmp_path / "own.csv", (factor,) * 3)
    usual = document(capsys, *TRAIN)["result"]
    moved = document(capsys, *TRAIN, "--evidence", own)["result"]
    parts = dict(moved["where_it_goes"])
    added = parts.pop("as in your runs")
    assert parts == pytest.approx(usual["where_it_goes"])
    steps = [found["step_seconds"]["expected"] for found in (usual, moved)]
    assert added == pytest.approx(steps[1] - steps[0])
    assert (added > 0) == (factor > 1)
    assert moved["expected_80"]["why"] == usual["expected_80"]["why"]
    _, out, _ = run(capsys, *TRAIN, "--evidence", own)
    (line,) = [line for line in out.splitlines() if "as in your runs" in line]
    assert ("-" in line) == (factor < 1)


def test_the_page_says_it_in_a_line(capsys, late, tmp_path):
    plan = tmp_path / "plan.yaml"
    code, out, err = run(capsys, *TRAIN, "--evidence", late, "-o", plan)
    assert (code, err) == (0, "")
    text = flat(out)
    assert "evidence from 3 runs of RUNS.csv: " in text
    assert "slower than published runs suggest; range narrowed from (" in text
    assert f"shardwise plan show {plan} --evidence {late}" in text
    step = next(line for line in out.splitlines() if line.strip().startswith("step "))
    _, shown, _ = run(capsys, "plan", "show", plan, "--evidence", late)
    assert step in shown.splitlines()
    assert f"--evidence {late} --against {plan}" in flat(shown)


def test_days_dollars_and_every_row_of_a_sweep_are_moved(capsys, late):
    sweep = ("plan", "sweep", *JOB, "--for", "torchtitan", "--tokens", "1T")
    before = document(capsys, *sweep)["result"]["points"][0]
    after = document(capsys, *sweep, "--evidence", late)["result"]["points"][0]
    times = after["expected_80"]["evidence"]["times"]
    assert after["days"] / before["days"] == pytest.approx(times)
    assert after["usd"] / before["usd"] == pytest.approx(times)
    assert width(after["days_80"]) == pytest.approx(width(after["expected_80"]))
    _, out, _ = run(capsys, *sweep, "--evidence", late)
    assert "h100:8: from 3 runs of RUNS.csv: " in flat(out)


@pytest.mark.slow
def test_a_deadline_is_kept_by_the_steps_that_runs_suggest(capsys, late):
    words = ("plan", "train", *JOB, "--for", "torchtitan", "--tokens", "100B", "--days", "3")
    words = tuple("h100" if word == "h100:8" else word for word in words)
    run_ = document(capsys, *words, "--evidence", late)["result"]["run"]
    assert run_["days"] <= 3


def test_runs_on_chips_of_another_vendor_move_nothing(capsys, tmp_path):
    other = table(tmp_path / "amd.csv", (2.0, 2.0, 2.0), hardware="mi300x")
    usual = document(capsys, *TRAIN)["result"]
    same = document(capsys, *TRAIN, "--evidence", other)["result"]
    assert same["step_seconds"] == usual["step_seconds"]
    assert same["expected_80"]["high"] == usual["expected_80"]["high"]
    _, out, _ = run(capsys, *TRAIN, "--evidence", other)
    assert "none of the 3 runs of amd.csv is like this plan, so they change nothing" in flat(out)


def test_validate_moves_every_row_by_the_others(capsys, late):
    before = document(capsys, "validate", late)["result"]
    after = document(capsys, "validate", late, "--evidence", late)["result"]
    for row, moved in zip(before["rows"], after["rows"], strict=True):
        assert row["evidence"] is None
        assert (moved["evidence"]["rows"], moved["evidence"]["like"]) == (2, 2)
        assert moved["evidence"]["itself_left_out"]
        assert abs(moved["error"]) < abs(row["error"])
        assert moved["interval"][1] / moved["interval"][0] < row["interval"][1] / row["interval"][0]
    _, out, _ = run(capsys, "validate", late, "--evidence", late)
    assert "RUNS.csv also has 3 of these runs; each is predicted from the" in flat(out)
    assert "corrected by runs of RUNS.csv: 3 of these runs; in the median the" in flat(out)


def test_runs_of_another_table_are_moved_by_all_of_them(capsys, late, tmp_path):
    mine = table(tmp_path / "mine.csv", (1.0,), seq_len="512")
    row = document(capsys, "validate", mine, "--evidence", late)["result"]["rows"][0]
    assert (row["evidence"]["rows"], row["evidence"]["itself_left_out"]) == (3, False)
    _, out, _ = run(capsys, "validate", mine, "--evidence", late)
    assert "RUNS.csv also has" not in flat(out)


def test_one_run_alone_says_nothing_of_itself(capsys, tmp_path):
    one = table(tmp_path / "one.csv", (2.0,))
    row = document(capsys, "validate", one, "--evidence", one)["result"]["rows"][0]
    assert row["evidence"]["like"] == 0
    _, out, _ = run(capsys, "validate", one, "--evidence", one)
    assert "one.csv also has 1 of these runs" in flat(out)
    assert "no other run of one.csv is like one of these, so nothing changes; add" in flat(out)


def refused(capsys, *words) -> str:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    return err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stack": "bananas"}, "column 'stack' is 'bananas'; it must be 'xla', "),
        ({"hardware": "h999"}, "column 'hardware': unknown chip 'h999'"),
        ({"model": "nobody"}, "its shape is needed"),
        ({"tp": "3"}, "column 'num_devices' is 8; dp, fsdp, tp"),
    ],
)
def test_a_row_that_cannot_be_priced_is_named_with_its_line(capsys, tmp_path, change, said):
    path = table(tmp_path / "RUNS.csv", (1.0,), **change)
    error = refused(capsys, *TRAIN, "--evidence", path)
    assert f"the table '{path}', line 2, run 'run-0': " in error
    assert said in error
    assert "correct the row or leave it out" in error


def test_two_rows_of_one_name_are_refused(capsys, late, tmp_path):
    twice = tmp_path / "twice.csv"
    twice.write_text(late.read_text().replace("run-2", "run-0"))
    assert "line 4: column 'id' is 'run-0'; line 2 has it" in refused(
        capsys, *TRAIN, "--evidence", twice
    )


def test_tables_that_cannot_be_read(capsys, tmp_path):
    assert "no such file" in refused(capsys, *TRAIN, "--evidence", tmp_path / "nix.csv")
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(["id", *ROW, "step_seconds"]) + "\n")
    assert "has no run" in refused(capsys, *TRAIN, "--evidence", empty)
    many = tmp_path / "many.csv"
    written(many, [{"id": str(i), **ROW, "step_seconds": "1"} for i in range(201)])
    assert "at most 200" in refused(capsys, *TRAIN, "--evidence", many)
    assert "column(s)" in refused(capsys, *TRAIN, "--evidence", lacking(tmp_path))


def lacking(folder):
    path = folder / "lacking.csv"
    path.write_text("id,model\na,llama-3.2-1b\n")
    return path


@pytest.mark.slow
def test_where_runs_would_move_nothing_they_are_refused(capsys, late, tmp_path):
    book = refused(capsys, *TRAIN, "--constants", "book", "--evidence", late)
    assert "--constants is book" in book
    for flag in ("--no-fit", "--serving"):
        assert flag in refused(capsys, "validate", flag, "--evidence", late)
    plan = tmp_path / "plan.yaml"
    words = ("plan", "serve", "--model", "llama-3-8b", "--on", "h100:1", "--input", "512")
    run(capsys, *words, "--output", "32", "--tpot", "40ms", "-o", plan)
    assert "this is a serving plan" in refused(capsys, "plan", "show", plan, "--evidence", late)


def test_what_is_wide_says_what_narrows_it(capsys):
    """Mixtures on chips of AMD: few publishers have run any."""
    words = ("plan", "train", "--model", "qwen3-30b-a3b", "--on", "mi300x:8")
    words += ("--batch", "64seq", "--seq", "4096")
    why = document(capsys, *words)["result"]["expected_80"]["why"]
    _, out, _ = run(capsys, *words)
    assert f"range {why[0]}; a few runs of yours narrow it (--evidence RUNS.csv)" in flat(out)


def test_the_fastest_plan_moves_with_the_one_that_is_the_answer(late, capsys):
    """Both by one factor: how much faster it is stays what it was."""
    plain = document(capsys, *TRAIN)["result"]
    moved = document(capsys, *TRAIN, "--evidence", late)["result"]
    assert (plain["fastest"] is None) == (moved["fastest"] is None)
    ratios = [
        (found["fastest"] or {"times_slower": 1.0})["times_slower"] for found in (plain, moved)
    ]
    assert ratios[1] == pytest.approx(ratios[0])
    assert moved["step_seconds"]["expected"] > 1.1 * plain["step_seconds"]["expected"]
