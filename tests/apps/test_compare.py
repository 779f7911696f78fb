"""`shardwise compare`: what it prints, refuses and exits with; a program kept before stands in."""

import json
from dataclasses import replace

import pytest
from tests.apps.commands import run
from tests.commands.program.dumps import DATA, dumped

from shardwise.commands.program import compiling as workflow


@pytest.fixture
def compiler(monkeypatch):
    def stand_in(**changes):
        _, compiled = dumped("zero-1")
        made = replace(compiled, **changes)
        monkeypatch.setattr(workflow, "compile_ahead", lambda *_, **__: made)

    return stand_in


PLAN = DATA / "zero-1" / "plan.json"


def test_a_plan_beside_its_program_is_tables_and_sentences(capsys, compiler):
    compiler()
    code, out, _ = run(capsys, "compare", PLAN)
    assert code == 0
    assert "train on v5e:4x4: fits" in out
    for title in ("where the planned step goes", "step time", "memory by kind"):
        assert title in out
    assert "less reduce-scatter over data than planned" in " ".join(out.split())
    code, out, _ = run(capsys, "compare", PLAN, "--detail")
    assert code == 0
    for title in ("FLOPs by op class", "bytes V by collective"):
        assert title in out


def test_a_comparison_is_a_document(capsys, compiler):
    compiler()
    code, out, err = run(capsys, "compare", PLAN, "--json")
    assert (code, err) == (0, "")
    (program,) = json.loads(out)["result"]["programs"]
    peak = program["memory"][0]
    assert peak["what"] == "peak"
    assert peak["compiled"] == pytest.approx(peak["predicted"], rel=0.1)


def test_a_program_that_does_not_fit_ends_with_code_3(capsys, compiler):
    compiler(fits=False, needed_bytes=2**35)
    code, out, err = run(capsys, "compare", PLAN)
    assert code == 3
    assert "does not fit" in out
    assert "train does not fit v5e:4x4: 32 GiB (34.4 GB) per device" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["mycode:mlp"], "'mycode:mlp' is a function and has no plan"),
        ([PLAN, "--phase", "decode"], "--phase decode is not a step of this plan; choose train"),
        ([PLAN, "--capture", "none.json"], "none.json"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_cannot_be_compared_is_refused(capsys, compiler, args, words):
    compiler()
    code, _, err = run(capsys, "compare", *args)
    assert code == 2
    assert words in err
