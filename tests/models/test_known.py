"""docs/models.md: what the classes of transformers count, and what we count."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
PAGE = ROOT / "docs" / "models.md"


@pytest.mark.torch
def test_the_page_is_what_transformers_says_and_four_fifths_are_read_exactly():
    from known_models import all_known, page

    rows = all_known()
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page(rows)) + "\n"
    assert sum(row.exact for row in rows) >= 0.8 * len(rows)
    assert len(rows) >= 100
    assert all(row.exact for row in rows if row.read is not None)
