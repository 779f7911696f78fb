"""The page of the book's systems has every one of them, and its commands answer."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("systems", ROOT / "scripts" / "systems.py")
assert spec
assert spec.loader
systems = importlib.util.module_from_spec(spec)
sys.modules["systems"] = systems
spec.loader.exec_module(systems)
ROWS = systems.systems()
SLOW, LONG = ("E2", "D11"), ("C8", "E1", "E18")
"""Systems whose commands search or simulate for seconds."""


def marks(row):
    if row.id in LONG:
        return pytest.mark.long
    return pytest.mark.slow if row.id in SLOW else ()


GIVEN = [pytest.param(row, marks=marks(row)) for row in ROWS if not row.missing]


def test_every_system_of_the_book_is_there():
    assert [row.id for row in ROWS] == systems.expected_ids()
    assert len(ROWS) == 101


def test_a_row_has_a_command_or_says_why_not():
    assert all(bool(row.command and row.line) != bool(row.missing) for row in ROWS)


def test_the_page_has_every_system_in_the_order_of_the_book(monkeypatch):
    monkeypatch.setattr(systems, "answering_line", lambda row: row.line)
    page = systems.page()
    heads = [line for line in page.splitlines() if line.startswith("### ")]
    assert heads == [f"### {row.id} {row.name}" for row in ROWS]
    shown = sum(not row.missing for row in ROWS)
    assert f"{shown} of {len(ROWS)} have a command; " in page
    assert page.count("```console\n$ ") == shown


@pytest.mark.parametrize("row", GIVEN, ids=lambda row: row.id)
def test_the_command_prints_the_line_that_answers(row):
    assert f"$ {row.command}\n" in systems.section(row)
