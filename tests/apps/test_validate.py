"""`shardwise validate`: document, tables, files, thresholds and refusals."""

import csv
import json

import pytest
from tests.apps.commands import document, run
from tests.evidence.training.test_runs import TABLE

from shardwise.apps.cli import output

pytestmark = pytest.mark.usefixtures("answers_kept")

COMMAND = ("validate", TABLE)


def test_the_document(capsys):
    result = document(capsys, *COMMAND)["result"]
    summary = result["summary"]
    assert summary["n"] == len(result["rows"])
    assert summary["by_source"]["palm-paper"]["n"] == 1
    row = next(r for r in result["rows"] if r["id"] == "palm-540b")
    assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    assert row["interval"][0] < row["interval"][1]
    assert result["efficiency"] == "fitted"


def test_the_tables(capsys):
    code, out, err = run(capsys, *COMMAND)
    assert (code, err) == (0, "")
    for heading in ("source", "chip", "bound by", "software", "runs that are", "check"):
        assert any(line.strip().startswith(heading) for line in out.splitlines()), heading


def test_rows_left_out_are_named(capsys, tmp_path):
    """A stack that there is not: the row is counted, and named on request."""
    header, first, *rest = TABLE.read_text().splitlines()
    row = first.replace(",fsdp,false,", ",bananas,false,")
    assert row != first
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, row, *rest]) + "\n")
    _, out, _ = run(capsys, "validate", path)
    assert "left out: 1 rows (--detail names each)" in out
    _, out, _ = run(capsys, "validate", path, "--detail")
    name = first.split(",")[0]
    assert f"left out: line 2, run '{name}': column 'stack' is 'bananas'; it must be 'xla'" in out
    (left,) = document(capsys, "validate", path)["result"]["left_out"]
    assert (left["line"], left["id"]) == (2, name)


def test_a_time_that_no_run_can_have_leaves_its_row_out_as_any_other_cell(capsys, tmp_path):
    """One rule for all columns, though the others still say how often the table is right."""
    header, first, second, *_ = TABLE.read_text().splitlines()
    rows = list(csv.DictReader([header, first, second]))
    path = tmp_path / "table.csv"
    for column in ("step_seconds", "zero"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows([{**rows[0], column: "-1"}, rows[1]])
        result = document(capsys, "validate", path)["result"]
        assert [row["id"] for row in result["rows"]] == [rows[1]["id"]]
        assert f"column '{column}' is '-1'; it must be " in result["left_out"][0]["reason"]


def test_two_rows_of_one_name_are_refused(capsys, tmp_path):
    header, first, second, *_ = TABLE.read_text().splitlines()
    path, name = tmp_path / "table.csv", first.split(",")[0]
    path.write_text("\n".join([header, first, second, first]) + "\n")
    code, _, err = run(capsys, "validate", path)
    assert code == 2
    assert f"the table '{path}', line 4: column 'id' is '{name}'; line 2 has it, too; give" in err


def test_what_was_not_read_stands_before_the_page(tmp_path, capfd):
    header, *rows = TABLE.read_text().splitlines()
    path = tmp_path / "table.csv"
    path.write_text("\n".join([f"{header},colour", *(f"{row},red" for row in rows)]) + "\n")
    order = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "print_page", lambda parts: order.append("page"))
        patch.setattr(output, "say", order.append)
        run(capfd, "validate", path)
    assert order == [
        "warning: not read: unknown column 'colour'; no known name is similar",
        "page",
    ]


def test_sources_and_grades_choose_rows(capsys):
    result = document(capsys, *COMMAND, "--source", "palm-paper")["result"]
    assert [r["id"] for r in result["rows"]] == ["palm-540b"]
    result = document(capsys, *COMMAND, "--grade", "A")["result"]
    assert {r["grade"] for r in result["rows"]} == {"A"}
    code, _, err = run(capsys, *COMMAND, "--source", "palm-papers")
    assert code == 2
    assert "did you mean 'palm-paper'" in err
    code, _, err = run(capsys, *COMMAND, "--grade", "Z")
    assert code == 2
    assert "grade 'Z'" in err


def test_chip_rates_alone(capsys):
    fitted = document(capsys, *COMMAND)["result"]
    alone = document(capsys, *COMMAND, "--no-fit")["result"]
    assert alone["efficiency"] == "roofline"
    assert alone["summary"]["median_error"] < fitted["summary"]["median_error"]


def test_check_exits_with_4_where_the_median_is_larger(capsys):
    median = document(capsys, *COMMAND)["result"]["summary"]["median_abs_error"]
    code, _, err = run(capsys, *COMMAND, "--check", f"{median * 0.9:.4f}")
    assert code == 4
    assert "the median absolute error is" in err
    code, _, err = run(capsys, *COMMAND, "--check", f"{min(1, median * 1.1):.4f}")
    assert (code, err) == (0, "")
    code, _, err = run(capsys, *COMMAND, "--check", "often")
    assert code == 2
    assert "--check 'often' is not a share" in err
    code, _, err = run(capsys, *COMMAND, "--check", "1.00")
    assert code == 2
    assert "would allow errors of 100%; write 1% or 100%" in err


def test_csv_and_plot(capsys, tmp_path):
    table, picture = tmp_path / "runs.csv", tmp_path / "runs.svg"
    document(capsys, *COMMAND, "--csv", table, "--plot", picture)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert float(rows[0]["interval_low"]) < float(rows[0]["interval_high"])
    assert "palm-540b" in {row["id"] for row in rows}
    assert picture.read_text().startswith("<?xml")
    code, _, err = run(capsys, *COMMAND, "--plot", tmp_path / "no" / "runs.png")
    assert code == 2
    assert "give another --plot" in err


def test_tables_that_cannot_be_used(capsys, tmp_path):
    code, _, err = run(capsys, "validate", tmp_path / "missing.csv")
    assert code == 2
    assert "cannot read the table" in err
    header = TABLE.read_text().splitlines()[0]
    empty = tmp_path / "empty.csv"
    empty.write_text(header + "\n")
    code, _, err = run(capsys, "validate", empty)
    assert code == 2
    assert "it is empty" in err


def test_json_is_one_document_even_where_a_threshold_is_missed(capsys):
    code, out, _ = run(capsys, *COMMAND, "--check", "0.1%", "--json")
    assert code == 4
    assert json.loads(out)["result"]["summary"]["n"] > 0


@pytest.fixture
def peaks(tmp_path):
    """Two runs that tell their peak memory, and one that does not."""
    header, *lines = TABLE.read_text().splitlines()
    rows = list(csv.DictReader([header, *lines[:3]]))
    for row, gib, kind in zip(rows, ("20", "30", ""), ("allocated", "reserved", ""), strict=True):
        row |= {"memory_gib": gib, "memory_kind": kind}
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_peak_memory_of_each_run_that_tells_it(capsys, peaks, tmp_path):
    result = document(capsys, "validate", peaks)["result"]
    plain, reserved, untold = result["rows"]
    assert plain["measured_peak_bytes_per_chip"] == 20 * 2**30
    assert plain["predicted_peak_as_measured"] == plain["peak_bytes_per_chip"]
    assert reserved["predicted_peak_as_measured"] > reserved["peak_bytes_per_chip"]
    for row in (plain, reserved):
        ratio = row["predicted_peak_as_measured"] / row["measured_peak_bytes_per_chip"]
        assert row["peak_error"] == pytest.approx(ratio - 1)
    assert untold["peak_error"] is None
    assert result["memory"]["n"] == 2
    out = tmp_path / "out.csv"
    _, text, _ = run(capsys, "validate", peaks, "--csv", out)
    errors = [row["peak_error"] for row in csv.DictReader(out.read_text().splitlines())]
    assert errors[:2] == [str(plain["peak_error"]), str(reserved["peak_error"])]
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["peak", "memory"])
    table = [line.split() for line in lines[at + 1 : at + 5]]
    shown = [row for row in table if row and row[0] in (plain["id"], reserved["id"])]
    assert [row[-1] for row in shown] == ["allocated", "reserved"]
    assert shown[0][-2] == f"{plain['peak_error']:+.1%}"
    assert any("peak memory, median |error| of 2 runs that report it" in line for line in lines)


def test_the_worst_peaks_of_many_runs(capsys):
    _, out, _ = run(capsys, *COMMAND, "--detail")
    assert "worst peak memory of a chip" in out
