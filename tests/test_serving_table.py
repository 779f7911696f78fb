"""docs/serving_plans.md: every model, chip and objective has its row, and a row comes out again."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "serving_plans.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "serving_table", ROOT / "scripts" / "serving_table.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def rows():
    """The cells of the table, its header first, without the rule."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def test_every_case_has_one_row(script):
    header, *body = rows()
    assert header == list(script.COLUMNS)
    cases = [(m, c, g) for m in script.MODELS for c in script.CHIPS for g in script.GOALS]
    assert [tuple(row[:3]) for row in body] == cases
    assert len(cases) == 3 * 6 * 3


def test_the_page_is_dated_and_quick():
    found = re.search(r"on (\d{4}-\d\d-\d\d) in (\d+) s of CPU time", PAGE)
    assert found is not None
    assert int(found[2]) < 60


def test_costs_are_numbers_and_chip_hours_where_there_is_no_price(script):
    for row in rows()[1:]:
        cell = dict(zip(script.COLUMNS, row, strict=True))
        if cell["servers"].startswith("none"):
            continue
        assert float(cell["chip-h/M input"]) > 0
        assert float(cell["chip-h/M output"]) > 0
        if cell["chip"] == "tpu7x":
            assert cell["$/M input"] == cell["$/M output"] == "unknown"
        else:
            assert float(cell["$/M output"]) > 0


def test_a_tighter_objective_is_no_cheaper(script):
    """All tokens together: 4 of input for 1 of output."""
    cost = {}
    for row in rows()[1:]:
        cell = dict(zip(script.COLUMNS, row, strict=True))
        if not cell["servers"].startswith("none"):
            both = 4 * float(cell["chip-h/M input"]) + float(cell["chip-h/M output"])
            cost[cell["model"], cell["chip"], cell["SLO"]] = both
    for model, chip, slo in cost:
        tighter = {"relaxed": "chat", "chat": "fast"}.get(slo)
        if tighter and (model, chip, tighter) in cost:
            # The search is not exact, and one pool is taken where two are hardly cheaper.
            assert cost[model, chip, slo] <= 1.05 * cost[model, chip, tighter]


def test_a_row_comes_out_again(script):
    _, again = script.rows_of("gpt-oss-120b", "b200")
    printed = [row for row in rows()[1:] if row[:2] == ["gpt-oss-120b", "b200"]]
    assert [row.cells() for row in again] == printed
