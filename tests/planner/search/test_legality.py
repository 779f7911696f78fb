"""The page of rules is the table that the search applies."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from legality import document, table  # noqa: E402

PAGE = ROOT / "docs" / "legality.md"


def test_the_page_lists_exactly_the_table():
    assert PAGE.read_text() == document()


def test_every_rule_has_a_name_of_its_own_and_a_reason():
    rules = table()
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.rule and rule.reason and rule.kind in ("law", "scope") for rule in rules)
