"""docs/compiled.json: its rows, and that it says what the planner says now.

Its form and its age are in `test_tables.py`.
"""

import json
import sys
from pathlib import Path

import pytest
from tests.every import over_every

from shardwise.workflows.compile import predicted_of
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.plan_file import price_plan

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from compiled.plans import FITS, MATCHED, Decode, plan_of  # noqa: E402
from compiled.table import page, summary_of  # noqa: E402

DOC = json.loads((ROOT / "docs" / "compiled.json").read_text())
ROWS = {row["name"]: row for row in DOC["rows"]}
PLANS = {**MATCHED, **FITS}


def test_the_table_has_every_plan():
    assert list(ROWS) == list(PLANS)
    for row in DOC["rows"]:
        memory = row["memory"]
        assert min(memory["predicted"], memory["compiled"]) > 0
        assert memory["fits_predicted"] == (memory["predicted"] <= memory["usable"])
        assert (row["collectives"] is None) == memory["refused"]


def test_the_page_and_the_sums_are_of_the_rows():
    assert summary_of(DOC["rows"]) == DOC["summary"]
    assert (ROOT / "docs" / "compiled.md").read_text() == page(DOC)


@over_every(PLANS)
def test_the_planner_still_says_so(name):
    row, hardware = PLANS[name], Hardware()
    phase = "decode" if isinstance(row, Decode) else "train"
    said = predicted_of(price_plan(plan_of(row, hardware), hardware), phase)
    assert said["peak_bytes"] == pytest.approx(ROWS[name]["memory"]["predicted"], rel=0.01)


def test_the_measures_of_issue_6_hold():
    moved, memory, fits = (DOC["summary"][name] for name in ("collectives", "memory", "fits"))
    assert moved["plans"] >= 24
    assert moved["equal"] >= 0.9 * moved["plans"]
    assert memory["near"] >= 0.8 * memory["plans"]
    assert fits["plans"] >= 20
    assert min(fits["under"], fits["over"]) >= 8
    assert fits["same"] >= 0.9 * fits["plans"]
