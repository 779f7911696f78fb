"""The resolver on random einsums: run, differentiated, counted and compared with XLA's choice."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from proof import draw, prove, report


@pytest.fixture(scope="module", params=[4, pytest.param(50, marks=pytest.mark.slow)])
def count(request):
    return request.param


@pytest.fixture(scope="module")
def verdicts(count):
    cases = [draw(seed) for seed in range(count)]
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(prove, (cases[::2], cases[1::2]))
    return [verdict for half in halves for verdict in half]


def test_no_case_fails(verdicts, count):
    assert len(verdicts) == count
    assert [(v.seed, v.einsum, v.problem) for v in verdicts if v.problem] == []


def test_the_report_counts_every_case(verdicts, count):
    text = report(verdicts, made="2026-01-01")
    assert f"| result equals the dense product | {count} |" in text
    assert f"| compiled collectives are the predicted ones, to the byte | {count} |" in text
    assert "| failed in any way | 0 |" in text
    bad = replace(verdicts[0], choice="cheaper", problem="XLA is cheaper and no rule says why")
    text = report([bad, *verdicts[1:]], made="2026-01-01")
    assert f"- seed {bad.seed}: `{bad.einsum}`" in text


def test_draws_cover_the_notation():
    cases = [draw(seed) for seed in range(500)]
    assert cases == [draw(seed) for seed in range(500)]
    arrays = [x for c in cases for x in (*c.einsum.operands, c.einsum.result)]
    assert {len(c.mesh) for c in cases} == {1, 2, 3}
    assert {len(x.dims) for c in cases for x in c.einsum.operands} == {2, 3, 4}
    assert {len(c.einsum.operands) for c in cases} == {1, 2, 3}
    assert any(len(dim.axes) > 1 for x in arrays for dim in x.dims)
    assert any(x.unreduced for x in arrays)
    assert any(c.einsum.result.unreduced for c in cases)
