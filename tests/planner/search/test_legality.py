"""The page of rules is the table that the search applies."""

from pathlib import Path

from shardwise.planner.search.legality import document, table

PAGE = Path(__file__).parents[3] / "docs" / "legality.md"


def test_the_page_lists_exactly_the_table():
    assert PAGE.read_text() == document()


def test_every_rule_has_a_name_of_its_own_and_a_reason():
    rules = table()
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.rule and rule.reason and rule.kind in ("law", "scope") for rule in rules)
