"""`shardwise report`: what a compile kept, and folders that are none."""

import gzip
import json
import shutil
import tracemalloc

import pytest
from tests.apps.commands import document, flat, run

from shardwise.commands.program import report_result
from shardwise.commands.program.report import SAMPLE


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
        (lambda program: program.pop("peak_bytes"), "damaged figures of"),
        (lambda program: program.pop("phase"), "phase"),
        (lambda program: program.update(phase="decode"), "has no times of 'decode'"),
    ],
    ids=["stages", "figures", "phase", "times"],
)
def test_a_damaged_report_is_refused_with_the_remedy(capsys, folder, change, message):
    changed(folder, change)
    code, out, err = run(capsys, "report", folder)
    assert code == 2
    assert out == ""
    assert message in err
    assert "shardwise compile --out" in err


def timeline(folder, text):
    """The report with another timeline of its first program."""
    program = json.loads((folder / "compile.json").read_text())["result"]["programs"][0]
    path = folder / f"{program['phase'].replace(':', '.')}.trace.json.gz"
    assert path.exists()
    path.write_bytes(gzip.compress(text.encode()))


SPAN = '{"ph": "X", "ts": 1, "dur": 1, "name": "f", "cat": "loops"}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": [1]}', "is not a trace of a compile"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}', "is not a trace of a compile"),
        (f'{{"traceEvents": [{SPAN.replace("1", "1e999", 1)}]}}', "numbers must be finite"),
        (f'{{"traceEvents": [{SPAN.replace(chr(34) + "f" + chr(34), "[]")}]}}', "is not a trace"),
        ('{"traceEvents": [{"ph": "C", "ts": 1, "args": {"bytes": "x"}}]}', "is not a trace"),
        ('{"traceEvents": {}}', "has no list 'traceEvents'"),
        (f'{{"traceEvents": [{SPAN}', "is not JSON at line 1"),
        (f'{{"traceEvents": [{SPAN}{f", {SPAN}" * 10}]}}', "more than 10 spans and counters"),
    ],
)
def test_a_damaged_timeline_is_refused_with_the_remedy(capsys, folder, monkeypatch, text, message):
    monkeypatch.setattr(report_result, "MOST_EVENTS", 10)
    timeline(folder, text)
    code, out, err = run(capsys, "report", folder)
    assert (code, out) == (2, "")
    assert message in flat(err)
    assert "compile --out" in flat(err) or "--top" in err


@pytest.mark.slow
def test_events_of_a_timeline_that_nothing_draws_are_not_kept(folder):
    """The whole document was held before."""
    other = SPAN.replace("loops", "compute") + ", "
    peaks = []
    for count in (1, 100_000):
        timeline(folder, f'{{"traceEvents": [{other * count}{SPAN}]}}')
        tracemalloc.start()
        found = report_result.read_report(folder, None, 3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert [span.op for span in found.spans] == ["f"]
    assert peaks[1] - peaks[0] < 25e6


def test_what_is_no_report_is_refused(capsys, tmp_path):
    code, _, err = run(capsys, "report", tmp_path / "none")
    assert code == 2
    assert "compile --out" in err
    code, _, err = run(capsys, "report", "--phase", "decode")
    assert code == 2
    assert "'decode'" in err
