"""docs/lab/serving_holds.json: thirty answers of `plan serve` hold, and one comes out again."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import serving_holds  # noqa: E402

RECORD = json.loads(serving_holds.RECORD.read_text(encoding="utf-8"))
ROWS = RECORD["rows"]


def test_every_request_is_there_with_five_other_seeds():
    assert [row["request"] for row in ROWS] == [
        serving_holds.title_of(request) for request in serving_holds.REQUESTS
    ]
    assert len(ROWS) == 30
    assert RECORD["requests"] == 2000
    for row in ROWS:
        assert set(row) == {"request", "servers", "printed", "shown", "runs"}
        assert [run["seed"] for run in row["runs"]] == list(serving_holds.SEEDS)
        assert set(row["printed"]) == set(row["shown"])
        assert all(0 <= run["in_target"] <= 1 for run in row["runs"])


def test_models_chips_loads_and_traces_are_many():
    asked = serving_holds.REQUESTS
    assert len({request["model"] for request in asked}) == 6
    assert len({request["on"].partition(":")[0] for request in asked}) >= 5
    rates = [request["rate"] for request in asked if "rate" in request]
    assert (min(rates), max(rates)) == (1, 500)
    assert len({request["trace"] for request in asked if "trace" in request}) == 2


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["request"].removeprefix("plan serve "))
def test_it_holds(row):
    assert serving_holds.holds(row)


def test_a_run_above_what_was_printed_is_found():
    row = json.loads(json.dumps(ROWS[0]))
    row["runs"][2]["tpot"] = 1.06 * row["printed"]["tpot"]
    assert not serving_holds.holds(row)


def test_the_page_is_of_the_record():
    page = serving_holds.PAGE.read_text(encoding="utf-8")
    assert page == serving_holds.page(ROWS, RECORD["made"])


@pytest.mark.slow
def test_one_answer_asked_again_holds():
    (request,) = [r for r in serving_holds.REQUESTS if r.get("rate") == 1]
    again = serving_holds.answered(request, Path())
    assert serving_holds.holds(again)
    assert again["printed"] == again["shown"]
