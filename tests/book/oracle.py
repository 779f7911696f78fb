"""The book's numbers as test data: one JSON file per chapter, one test per entry.

Each entry keeps its provenance (`source`, `status`, `notes`). A test marks itself with
`@entry("id")`, receives the entry and calls the public API with the entry's own `inputs`;
`check` compares with `correct_value`: integers exactly, floats to 1e-6 relative or the entry's
`abs_tol`. `rel_tol` only decides whether the report says that the book agrees.
"""

import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"
ENTRIES: dict[str, dict[str, Any]] = {
    e["id"]: e for path in sorted(DATA.glob("*.json")) for e in json.loads(path.read_text())
}
TESTED: set[str] = set()


def entry(entry_id: str):
    """Mark the test of one oracle entry; the test takes the entry as its argument `e`."""
    TESTED.add(entry_id)
    return pytest.mark.parametrize("e", [pytest.param(ENTRIES[entry_id], id=entry_id)])


def check(e: dict[str, Any], got: Any) -> None:
    """Compare an answer (a number or a sequence of numbers) with the entry's correct value."""
    want = e["correct_value"]
    wants = want if isinstance(want, list) else [want]
    gots = list(got) if isinstance(want, list) else [got]
    assert len(gots) == len(wants), f"{e['id']}: {len(gots)} numbers for {len(wants)}"
    for g, w in zip(gots, wants, strict=True):
        if isinstance(w, int):
            assert g == w, f"{e['id']}: {g} != {w}"
        else:
            tolerance = e.get("abs_tol") or 1e-6 * abs(w)
            assert abs(g - w) <= tolerance, f"{e['id']}: {g} != {w}"
