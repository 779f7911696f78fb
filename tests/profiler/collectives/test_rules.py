"""The compiler's rewrites on what it made of published models: each explains a dump, and is needed.

The dumps are programs of the table in docs/lab/compiled.md.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.commands.program.dumps import NAMES, dumped

from shardwise.models import load_model
from shardwise.profiler.collectives import rules
from shardwise.profiler.collectives.lines import read_lines
from shardwise.profiler.collectives.rules import RULES, compare

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from planned_steps.plans import PLANS
from planned_steps.steps import planned_lines

SHARE = 0.01
"""Of the planned bytes: what may be left (docs/lab/compiled.md)."""


@pytest.fixture(scope="module")
def cases():
    found = {}
    for name in NAMES:
        plan, compiled = dumped(name)
        cfg = load_model(plan.model)
        found[name] = plan, cfg, planned_lines(plan, cfg), read_lines(compiled.hlo, plan)
    return found


def test_there_are_at_most_eight_rules_and_none_names_a_plan():
    assert {name for name, _ in rules.ORDER if name} == set(RULES)
    assert len(RULES) <= 8
    words = set(" ".join(RULES.values()).split())
    assert not words & {*PLANS, *NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_the_program_after_the_rules(cases, name):
    plan, cfg, planned, compiled = cases[name]
    found = compare(plan, cfg, planned, compiled)
    total = sum(line.total for line in planned)
    assert found.left <= SHARE * total
    assert found.raw_match < 0.9
    # A hundredth more of any kind and axes is seen.
    for row in found.rows:
        key = (row.kind, row.axes)
        if row.planned[1] > 2 * SHARE * total and any(x.key == key for x in planned):
            more = [replace(x, bytes=1.1 * x.bytes) if x.key == key else x for x in planned]
            assert compare(plan, cfg, more, compiled).left > found.left


@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_a_program_is_not_what_was_planned(cases, rule, monkeypatch):
    before = {name: compare(*case) for name, case in cases.items()}
    others = tuple(pair for pair in rules.ORDER if pair[0] != rule)
    monkeypatch.setattr(rules, "ORDER", others)
    explained = []
    for name, (plan, cfg, planned, compiled) in cases.items():
        if rule == "as a sum":  # what the reader saw is seen no more
            compiled = [replace(x, kind=x.written, form="itself") for x in compiled]
        after = compare(plan, cfg, planned, compiled)
        if any(note.rule == rule for note in before[name].explained):
            assert after.left > before[name].left, name
            explained.append(name)
    assert explained
