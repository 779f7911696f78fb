"""docs/lab/serving_speed.json: figures of our server beside others, and the page made of them."""

import json
import sys
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks")]

import serve  # noqa: E402

RECORD = ROOT / "docs" / "lab" / "serving_speed.json"
DOCUMENT = json.loads(RECORD.read_text(encoding="utf-8"))


def test_every_load_stands_once_in_order():
    places = [serve.place(row) for row in DOCUMENT["rows"]]
    assert places == sorted(set(places))
    tiny = {row["concurrency"] for row in DOCUMENT["rows"] if row["shape"] == "tiny"}
    assert {1, 8, 32} <= tiny


@pytest.mark.parametrize("row", DOCUMENT["rows"], ids=lambda row: str(serve.place(row)))
def test_a_row_has_all_servers_with_their_spread_and_ratios(row):
    assert date.fromisoformat(row["date"]) <= date.today()
    assert row["commit"]
    assert row["rounds"] >= 2
    assert set(row["servers"]) == set(row["dtypes"]) == set(serve.DTYPES)
    for name, figures in row["servers"].items():
        assert row["dtypes"][name] in serve.DTYPES[name]
        ratios = figures.get("ours_over_theirs", {})
        assert set(ratios) == (set() if name == "shardwise" else set(serve.FIGURES))
        for key in serve.FIGURES:
            for figure in (figures[key], *([ratios[key]] if ratios else [])):
                assert 0 < figure["least"] <= figure["median"] <= figure["most"]


def test_the_fastest_dtype_is_the_one_that_was_measured():
    for row in DOCUMENT["rows"]:
        for name, found in row.get("tried", {}).items():
            assert set(found) == set(serve.DTYPES[name])
            assert row["dtypes"][name] == max(found, key=found.__getitem__)


def test_the_page_is_of_the_rows():
    assert RECORD.with_suffix(".md").read_text(encoding="utf-8") == serve.page(DOCUMENT)
