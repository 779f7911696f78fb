"""Every oracle entry that is carried into the project has a test that names it."""

import importlib
from pathlib import Path

import pytest

from book.oracle import ENTRIES, TESTED

MODULES = sorted({p.stem for p in Path(__file__).parent.glob("test_*.py")} - {"test_coverage"})
CHAPTERS = sorted({e["chapter"] for e in ENTRIES.values()})


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_entry_has_a_test(chapter):
    for module in MODULES:
        importlib.import_module(f"book.{module}")
    missing = {i for i, e in ENTRIES.items() if e["chapter"] == chapter} - TESTED
    assert not missing, f"no test for {sorted(missing)}"
