"""The page of all rules is made of the rules' functions and the corpus alone."""

import sys
import tomllib
from pathlib import Path

import pytest

from shardwise.profiler import explain

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import findings  # noqa: E402  (found by the line above)


def test_every_rule_has_its_name_its_cause_and_its_number():
    rows = findings.written()
    assert len(rows) >= len(explain.RULES)
    assert all(row.name and row.cause and row.seconds and row.file for row in rows)
    by_name = {row.name: row for row in rows}
    assert by_name["copied cache"].cause == by_name["copied weights"].cause  # one of two names
    assert "_once_less(e, r)" in by_name["sums in a loop"].seconds  # named by a caller
    assert by_name["missing remat"].seconds != "seconds"  # what the name stands for


def test_every_reported_fault_is_of_a_rule_of_the_page():
    rows = tomllib.loads((findings.CORPUS / "corpus.toml").read_text())
    faults = {row["rule"] for row in rows.values() if "rule" in row}
    assert faults <= {row.name for row in findings.written()}


def test_a_section_has_symptom_cure_both_programs_and_what_is_said():
    every = {row.name: row for row in findings.written()}
    rows = tomllib.loads((findings.CORPUS / "corpus.toml").read_text())
    row = rows["involuntary_remat"]
    pair = findings.Pair(
        name="involuntary_remat",
        folder=findings.CORPUS / "data",
        stem="involuntary_remat",
        twin="involuntary_remat.twin",
        program="involuntary_remat",
        row=row,
    )
    text = "\n".join(findings._section(every["full rematerialization"], [pair]))
    assert text.startswith("\n## Full rematerialization\n")
    for part in (row["report"], row["seen"], row["cured"], "tests/explain/corpus/programs.py:"):
        assert part in text
    assert "NamedSharding(mesh, P(" in text


@pytest.mark.slow
def test_the_page_has_a_section_for_every_rule():
    page = findings.page()
    assert page.count("\n## ") == len(findings.written())
