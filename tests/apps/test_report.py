"""`shardwise report`: what a compile kept, and folders that are none."""

import json
import shutil

import pytest
from tests.apps.commands import document, run

from shardwise.verbs.report import SAMPLE


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(SAMPLE, tmp_path / "report")


def changed(folder, change):
    """The report with its first program changed by `change(dict)`."""
    path = folder / "compile.json"
    doc = json.loads(path.read_text())
    change(doc["result"]["programs"][0])
    path.write_text(json.dumps(doc))


def test_the_op_that_was_followed_stands_at_every_stage(capsys):
    found = document(capsys, "report")["result"]["stages"]
    assert "dot_general" in found["op"]
    assert found["jaxpr"]
    assert found["stablehlo"]
    assert any(change["kinds"] == ["given"] for change in found["changes"])
    _, page, _ = run(capsys, "report", "--stages")
    for head in ("jaxpr", "StableHLO", "optimised HLO", "schedule", "pass"):
        assert f"  {head}" in page


def test_a_report_without_stages_says_how_to_have_them(capsys, folder):
    changed(folder, lambda program: program.pop("stages"))
    code, page, _ = run(capsys, "report", folder, "--stages")
    assert code == 0
    assert "`shardwise compile --stages --out`" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda program: program.update(stages={"op": 1}), "damaged stages"),
        (lambda program: program.pop("phase"), "phase"),
        (lambda program: program.update(phase="decode"), "has no times of 'decode'"),
    ],
    ids=["stages", "phase", "times"],
)
def test_a_damaged_report_is_refused_with_the_remedy(capsys, folder, change, message):
    changed(folder, change)
    code, out, err = run(capsys, "report", folder)
    assert code == 2
    assert out == ""
    assert message in err
    assert "shardwise compile --out" in err


def test_what_is_no_report_is_refused(capsys, tmp_path):
    code, _, err = run(capsys, "report", tmp_path / "none")
    assert code == 2
    assert "compile --out" in err
    code, _, err = run(capsys, "report", "--phase", "decode")
    assert code == 2
    assert "'decode'" in err
