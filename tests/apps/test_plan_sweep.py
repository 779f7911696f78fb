"""`shardwise plan sweep` as a user sees it: table, JSON, CSV, plot, and its errors."""

import csv
import json

import pytest

from shardwise.apps.cli import main

pytestmark = pytest.mark.usefixtures("answers_kept")

ASK = ["plan", "sweep", "--model", "llama-3-8b", "--on", "v5e", "--seq", "4096"]
ASK += ["--batch", "1024seq", "--pin", "stage=1", "--remat", "block"]


def ask(*more: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main([*ASK, *more])
    return int(stop.value.code or 0)


def test_table_and_verdict(capsys):
    assert ask("--chips", "64..256", "--tokens", "1T", "--days", "30") == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[3:6]] == [
        "v5e:8x8",
        "v5e:8x16",
        "v5e:16x16",
    ]
    assert "within 30 days" in shown


def test_json_csv_and_plot(capsys, tmp_path):
    table, picture = tmp_path / "s.csv", tmp_path / "s.svg"
    more = ["--csv", str(table), "--plot", str(picture), "--json"]
    assert ask("--chips", "64..128", "--tokens", "1T", *more) == 0
    points = json.loads(capsys.readouterr().out)["result"]["points"]
    assert [p["chips"] for p in points] == [64, 128]
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [float(r["expected_s"]) for r in rows] == [p["step_seconds"]["expected"] for p in points]
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--chips", "64"], "is not a range; write it like --chips 256..16384"),
        (["--chips", "128..64"], "ends below its start"),
        (["--chips", "1..10M"], "goes beyond"),
        (["--days", "3"], "give its length with --tokens"),
        (["--batch", "1000"], "is 1,000 tokens, less than one sequence of 4,096"),
    ],
)
def test_errors(capsys, more, said):
    assert ask(*more) == 2
    assert said in capsys.readouterr().err
