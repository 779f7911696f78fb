"""Every oracle entry that is carried into the project has a test that names it."""

import importlib

import pytest

from book.oracle import ENTRIES, TESTED

CHAPTERS = ("1", "2", "4", "6", "12")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_entry_has_a_test(chapter):
    importlib.import_module(f"book.test_ch{chapter}")
    missing = {i for i, e in ENTRIES.items() if e["chapter"] == chapter} - TESTED
    assert not missing, f"no test for {sorted(missing)}"
