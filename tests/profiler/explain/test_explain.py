"""Planted faults are found with their cost, clean twins and good programs are silent.

`data/` holds programs compiled by `scripts/explain_programs.py` and `explain_programs_more.py`,
which say what each is.
"""

import gzip
import json
from pathlib import Path

import pytest

from shardwise.hardware import parse_slice
from shardwise.profiler.ahead import Buffer
from shardwise.profiler.explain import explain_program
from shardwise.profiler.explain.finding import WORTH
from shardwise.sharding import Mesh

DATA = Path(__file__).parent / "data"
INDEX = json.loads((DATA / "index.json").read_text())
RULES = {
    "unsharded_embedding": "whole parameter",
    "missing_remat": "missing remat",
    "gather_in_decode": "gathered weights",
    "f32_matmul": "wide matmul",
    "bad_padding": "padding",
    "replicated_optimizer": "replicated optimizer",
    "needless_relayout": "re-layout",
    "all_reduce_for_scatter": "whole sums",
    "axis_order": "axis order",
    "host_transfer": "host transfer",
    "duplicated_work": "duplicated work",
    "ping_pong": "ping-pong",
    "undonated_cache": "undonated cache",
    "gathered_cache": "gathered cache",
    "replicated_cache": "replicated cache",
    "copied_weights": "copied weights",
    "callback": "host callback",
    "repeated_gather": "repeated collective",
    "one_hot": "one-hot product",
    "unused_gather": "unused gather",
}
FAULTY = [label for label, row in INDEX.items() if row["faulty"]]
CLEAN = [label for label, row in INDEX.items() if not row["faulty"] and row["name"] in RULES]
GOOD = [label for label, row in INDEX.items() if row["name"] not in RULES]


def explained(label):
    row = INDEX[label]
    with gzip.open(DATA / f"{label}.hlo.gz", "rt") as file:
        return explain_program(
            file.read(),
            parse_slice(row["on"]),
            Mesh(tuple(row["mesh"].items())),
            buffers=[Buffer(**b) for b in row["buffers"]],
            fits=row["fits"],
        )


def test_twenty_faults_two_ways_each_and_five_good_programs():
    assert {INDEX[label]["name"] for label in FAULTY} == set(RULES)
    assert len(RULES) == len({*RULES.values()}) == 20
    assert len(FAULTY) == len(CLEAN) == 2 * len(RULES)
    assert len(GOOD) == 5


@pytest.mark.parametrize("label", FAULTY)
def test_a_planted_fault_is_found_with_its_cost_and_a_remedy(label):
    found = explained(label)
    mine = [f for f in found.findings if f.rule == RULES[INDEX[label]["name"]]]
    assert mine, [f.rule for f in found.findings]
    assert found.findings[0] is mine[0], "another finding costs more"
    for f in mine:
        assert WORTH * found.timeline.expected <= f.seconds
        assert f.where
        assert f.what
        assert f.remedy


@pytest.mark.parametrize("label", CLEAN)
def test_the_clean_twin_of_a_fault_is_silent_about_it(label):
    assert explained(label).findings == ()


@pytest.mark.parametrize("label", GOOD)
def test_a_good_program_is_left_in_peace(label):
    assert explained(label).findings == ()


@pytest.mark.parametrize("label", FAULTY)
def test_seconds_by_line_and_scope_add_up_to_the_step(label):
    found = explained(label)
    for lines in (found.lines, found.components, found.scopes):
        total = sum(line.seconds for line in lines)
        assert total == pytest.approx(found.timeline.expected, rel=0.02)
        assert sum(line.flops for line in lines) == pytest.approx(found.timeline.flops)


def test_what_a_remedy_saves_is_what_the_clean_twin_saves():
    """The cost of an exposed gather is the time that its twin does without."""
    for variant in "ab":
        fault, clean = (explained(f"gather_in_decode.{variant}.{k}") for k in ("fault", "clean"))
        saved = fault.timeline.expected - clean.timeline.expected
        cost = sum(f.seconds for f in fault.findings if f.rule == "gathered weights")
        assert cost == pytest.approx(saved, rel=0.2)


@pytest.mark.parametrize("label", FAULTY)
def test_every_second_belongs_to_a_line_and_a_function(label):
    """What the compiler made itself is of the line and the scope that it is made for; a copy of an
    argument that is handed on as it is, of the argument."""
    found = explained(label)
    nowhere = [line for line in found.scopes if line.where == "(no scope)"]
    assert sum(line.seconds for line in nowhere) < 0.01 * found.timeline.expected
    given = {a.name for a in found.arguments}
    lost = [line for line in found.lines if ".py:" not in line.where and line.where not in given]
    assert sum(line.seconds for line in lost) < 0.01 * found.timeline.expected


def test_exchanges_stand_by_their_axes():
    found = explained("duplicated_work.a.fault")
    parts = {line.where: line.seconds for line in found.components}
    assert parts["exchange over tensor"] == pytest.approx(found.timeline.exposed_communication)


@pytest.mark.parametrize("label", FAULTY)
def test_floor_causes_and_unknown_add_up_to_the_step(label):
    found = explained(label)
    parts, step = found.parts, found.timeline.expected
    unknown = sum(u.seconds for u in parts.unknown)
    total = parts.floor + sum(c.seconds for c in parts.causes) + unknown
    assert total == pytest.approx(step, rel=0.001)
    assert unknown <= 0.15 * (step - parts.floor)
    lines = {line.where: line.seconds for line in found.lines}
    for c in parts.causes:
        assert 0 < c.most <= c.seconds * 1.0001
        assert c.share == pytest.approx(c.seconds / step)
        assert c.most <= lines[c.where] * 1.0001 or c.name.startswith("memory bandwidth shared")
