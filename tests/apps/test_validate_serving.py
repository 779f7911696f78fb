"""`shardwise validate --serving`: document, tables, files, thresholds and refusals."""

import csv

import pytest
from tests.apps.commands import document, run

from shardwise.evidence.serving.runs import PUBLISHED_SERVING


@pytest.fixture
def few(tmp_path):
    """Thirty published rows of two engines, and one that no plan expresses."""
    with PUBLISHED_SERVING.open() as file:
        rows = [r for r in csv.DictReader(file) if r["model"] == "llama-3.1-70b"][::8]
    rows = [r for r in rows if r["engine"] in ("vllm", "trtllm")]
    rows.append({**rows[0], "model": "another-1b"})
    path = tmp_path / "few.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_document(capsys, few):
    result = document(capsys, "validate", "--serving", few)["result"]
    summary = result["summary"]
    assert summary["n"] == len(result["rows"]) == summary["by_model"]["llama-3.1-70b"]["n"]
    assert set(summary["by_engine"]) == {"vllm", "trtllm"}
    assert set(summary["by_chip"]) == {"h100", "h200", "b200"}
    row = result["rows"][0]
    assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    assert row["interval"][0] < row["predicted"] < row["interval"][1]
    assert 0 < result["coverage"] <= 1
    assert result["filter"]["left_out"] == {"a model that the zoo has not": 1}
    assert {fold: left["tpot"]["n"] for fold, left in result["left_out"].items()} == {
        "model": summary["n"],
        "chip": summary["n"],
        "release": summary["n"],
    }


@pytest.mark.slow
def test_the_tables(capsys, few):
    code, out, err = run(capsys, "validate", "--serving", few)
    assert (code, err) == (0, "")
    for heading in ("fitted with", "in-sample", "source", "chip", "model", "engine"):
        assert any(line.strip().startswith(heading) for line in out.splitlines()), heading
    assert "left out: 1 rows (--detail says why)" in out
    _, out, _ = run(capsys, "validate", "--serving", few, "--detail")
    assert "left out: 1 rows: a model that the zoo has not (first: line " in out
    assert ": column 'model' is 'another-1b'; it must be a model of the zoo" in out
    assert any(line.strip().startswith("worst") for line in out.splitlines())


@pytest.mark.slow
def test_without_constants_it_is_worse(capsys, few):
    fitted, plain = (
        document(capsys, "validate", "--serving", few, *flags)["result"]
        for flags in ((), ("--no-fit",))
    )
    assert (fitted["efficiency"], plain["efficiency"]) == ("fitted", "roofline")
    errors = [r["summary"]["median_abs_error"] for r in (fitted, plain)]
    assert errors[0] < errors[1]


def test_a_threshold(capsys, few):
    assert run(capsys, "validate", "--serving", few, "--check", "30%")[0] == 0
    code, _, err = run(capsys, "validate", "--serving", few, "--check", "0.1%")
    assert code == 4
    assert "the median absolute error of TPOT is" in err


def test_one_line_per_run_as_csv(capsys, few, tmp_path):
    path = tmp_path / "out.csv"
    assert run(capsys, "validate", "--serving", few, "--csv", path)[0] == 0
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["measured"]) > 0 and row["engine"] for row in rows)


def test_what_cannot_take_effect_or_be_read(capsys, few, tmp_path):
    with few.open() as file:
        rows = [{**row, "tpot_ms": "fast"} for row in csv.DictReader(file)]
    slow = tmp_path / "slow.csv"
    with slow.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    empty = tmp_path / "empty.csv"
    empty.write_text("model\n")
    for args, said in (
        ((few, "--grade", "A"), "--grade cannot take effect with --serving"),
        ((few, "--plot", tmp_path / "x.png"), "--plot cannot take effect with --serving"),
        ((few, "--source", "nobody"), "unknown source 'nobody'"),
        ((empty,), "lacks the column"),
        ((slow,), "the first is line 2: column 'tpot_ms' is 'fast'; it must be a number of at"),
        ((tmp_path / "missing.csv",), "cannot read the table"),
    ):
        code, _, err = run(capsys, "validate", "--serving", *args)
        assert code == 2, args
        assert said in err
