"""`shardwise hw`: the documents, the tables, the CSV and the refusals."""

import csv
import json

import click
import pytest

from shardwise.apps.cli import main
from shardwise.apps.cli.hw import hw
from shardwise.errors import BadRequest
from shardwise.hardware import chip_ids, load_chip


def run(*args):
    hw.main(args=list(args), standalone_mode=False)


def result_of(capsys, *args):
    run(*args, "--json")
    return json.loads(capsys.readouterr().out)["result"]


def test_list(capsys, tmp_path):
    path = tmp_path / "chips.csv"
    rows = result_of(capsys, "list", "--csv", str(path))["chips"]
    assert [row["chip"] for row in rows] == list(chip_ids())
    v5e = next(row for row in rows if row["chip"] == "v5e")
    assert (v5e["bf16_flops"], v5e["links_per_chip"], v5e["link_oneway"]) == (1.97e14, 4, 5e10)
    with path.open() as file:
        assert next(r for r in csv.DictReader(file) if r["chip"] == "h100")["hbm_bandwidth"]


def test_list_reads_as_a_table(capsys):
    run("list", "--constants", "book")
    out = capsys.readouterr().out
    assert "torus 4x4x576" in out
    assert "125 (f16)" in out
    assert "dense" in out
    assert "one-way" in out


@pytest.mark.parametrize(
    ("columns", "hidden"),
    [(200, []), (130, ["name"]), (92, ["name", "int8"]), (80, ["name", "int8", "usable"])],
)
def test_a_narrow_terminal_goes_without_the_spare_columns(capsys, monkeypatch, columns, hidden):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    run("list")
    out = capsys.readouterr().out
    said = f"No room for: {', '.join(hidden)}; see --csv" if hidden else "Peaks are dense"
    assert said in out
    lines = [click.unstyle(line) for line in out.splitlines()]
    assert max(map(len, lines[: len(chip_ids()) + 3])) <= columns
    assert any(line.split()[0] == "h100" for line in lines if line.split())
    assert ("TPU v5p" in out) == (not hidden)


def test_show_gives_a_source_for_every_number(capsys):
    result = result_of(capsys, "show", "v5p")
    numbers = result["numbers"]
    assert set(numbers) >= set(load_chip("v5p").numbers())
    assert all(entry["source"] for entry in numbers.values())
    link = numbers["network.link_oneway"]
    assert (link["value"], link["vendor"], link["book"]) == (1e11, 1e11, 9e10)
    assert "book" not in numbers["cores"]
    assert result["prices"]["price"]["as_of"]
    assert "v5p:16x20x28" in result["slices"]
    assert "tpu v5" in result["aliases"]


def test_show_says_nominal_and_usable_in_both_units(capsys):
    run("show", "v5e")
    out = capsys.readouterr().out
    assert "16 GiB (17.18 GB)" in out
    assert "15.75 GiB (16.91 GB)" in out
    assert "$1.20 per chip-hour (gcp us-central1, on demand, 20" in out
    run("show", "v5e", "--detail")
    assert "$1.20/h" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("constants", "whence"),
    [("vendor", "as measured or fitted"), ("book", "as the book assumes")],
)
def test_show_says_where_shares_of_the_peak_come_from(constants, whence, capsys):
    run("show", "v5p", "--constants", constants)
    assert f"of the peak, {whence}" in capsys.readouterr().out


def test_show_of_what_only_the_book_gives(capsys):
    numbers = result_of(capsys, "show", "v3")["numbers"]
    entry = numbers["peak_flops.int8"]
    assert (entry["value"], entry["vendor"], entry["book"]) == (None, None, 1.4e14)
    run("show", "v3")
    assert "140 TOP/s" in capsys.readouterr().out.replace("TFLOP/s", "TOP/s")


def test_show_with_overrides(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('id = "lab"\nbase = "h100"\nname = "Lab"\n')
    args = ("show", "lab", "--hw", str(path), "--set", "hbm_bandwidth=3e12", "--price", "lab=1.5")
    result = result_of(capsys, *args)
    assert result["numbers"]["hbm_bandwidth"]["value"] == 3e12
    assert result["prices"]["price"]["usd_per_chip_hour"] == 1.5
    assert "lab" in [row["chip"] for row in result_of(capsys, "list", "--hw", str(path))["chips"]]


def test_diff(capsys):
    result = result_of(capsys, "diff", "v5e", "h100")
    assert result["numbers"]["hbm_bandwidth"]["ratio"] == pytest.approx(3.35e12 / 8.19e11)
    assert result["numbers"]["network.pod"]["ratio"] is None
    run("diff", "v5e", "tpu7x")
    out = capsys.readouterr().out
    assert "tpu7x / v5e" in out
    assert "9.01x" in out


@pytest.mark.parametrize("chip", chip_ids())
@pytest.mark.parametrize("constants", ["vendor", "book"])
def test_every_chip_shows(capsys, chip, constants):
    run("show", chip, "--constants", constants)
    assert capsys.readouterr().out


def test_an_unknown_chip():
    with pytest.raises(BadRequest, match="unknown chip 'v5q'; did you mean 'v5p' or 'v5e'"):
        run("show", "v5q")


def test_an_unknown_chip_exits_with_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["hw", "diff", "v5p", "v5q"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: unknown chip 'v5q'; did you mean")
