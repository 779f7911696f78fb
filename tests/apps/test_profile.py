"""`shardwise profile` and `shardwise calibrate`: what they refuse, print and write."""

import gzip
import json

import pytest
from tests.apps.commands import run

from shardwise.commands.run.calibration import machine as workflow

EVENTS = [
    {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},
    {"ph": "M", "pid": 3, "tid": 1, "name": "thread_name", "args": {"name": "XLA Modules"}},
    {"ph": "M", "pid": 3, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
    {"ph": "X", "pid": 3, "tid": 1, "ts": 0, "dur": 900, "name": "jit_step(5)"},
    {
        "ph": "X",
        "pid": 3,
        "tid": 2,
        "ts": 0,
        "dur": 600,
        "name": "dot.1",
        "args": {"hlo_category": "convolution fusion", "source": "train.py:12"},
    },
    {"ph": "X", "pid": 3, "tid": 2, "ts": 650, "dur": 250, "name": "copy.4"},
]
HLO = """HloModule jit_step, is_scheduled=true

ENTRY %main (a: f32[64,64]) -> f32[64,64] {
  %a = f32[64,64]{1,0} parameter(0)
  %dot.1 = f32[64,64]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %copy.4 = f32[64,64]{0,1} copy(%dot.1)
}
"""


@pytest.fixture
def capture(tmp_path):
    path = tmp_path / "run.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    return path


def test_a_capture_made_elsewhere_is_shown(capsys, capture):
    code, out, _ = run(capsys, "profile", "--capture", capture)
    assert code == 0
    assert out.startswith("jit_step: 1 runs on 1 devices, 900 µs each (median)")
    assert "convolution fusion   600 µs" in out
    assert "train.py:12" in out


def test_with_the_compiled_text_its_ops_are_counted(capsys, capture, tmp_path):
    (tmp_path / "step.txt").write_text(HLO)
    args = ("profile", "--capture", capture, "--hlo", tmp_path / "step.txt", "--json")
    code, out, _ = run(capsys, *args)
    assert code == 0
    result = json.loads(out)["result"]
    (matmul,) = (row for row in result["by_class"] if row["where"] == "matmul")
    assert matmul["measured"] == pytest.approx(600e-6)
    assert matmul["flops"] == 2 * 64**3
    assert result["step_seconds"]["measured"] == pytest.approx(900e-6)


def test_expected_seconds_stand_beside_those_of_a_capture(capsys, capture, tmp_path):
    (tmp_path / "step.txt").write_text(HLO)
    args = ("profile", "--capture", capture, "--hlo", tmp_path / "step.txt", "--on", "v5e:1x1")
    code, out, _ = run(capsys, *args)
    assert code == 0
    assert " compiled\n" in out.partition("\n\n")[0] + "\n"
    assert "compiled" in out.partition("op class")[2].partition("\n")[0]


def test_ops_and_the_step_have_their_share_of_the_roofline(capsys, capture, tmp_path):
    """A copy of 64 x 64 float32 moves 32 KiB: 40 ns at 819 GB/s, measured 250 us."""
    (tmp_path / "step.txt").write_text(HLO)
    args = ("profile", "--capture", capture, "--hlo", tmp_path / "step.txt", "--json")
    result = json.loads(run(capsys, *args, "--on", "v5e:1x1")[1])["result"]
    shares = {row["where"]: row["of_roofline"] for row in result["by_op"]}
    assert shares["copy.4"] == pytest.approx(2**15 / 819e9 / 250e-6, rel=0.01)
    spent = sum(row["measured"] for row in result["by_op"])
    assert spent == pytest.approx(result["matched_seconds"])
    assert 0 < result["step_seconds"]["of_roofline"] < 1e-3
    assert "by_op" not in json.loads(run(capsys, *args)[1])["result"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--capture", "a.json", "--on", "v5e:1x1"), "need its program: add --hlo FILE"),
        ((), "name a plan or MODULE:FUNCTION to run, or a capture with --capture"),
        (("m:f",), "function 'm:f' lacks --args; give --args MODULE:NAME, a function that returns"),
        (("m:f", "--args", "m:g", "--phase", "train"), "--set and --phase are for plans"),
        (("plan.yaml", "--hlo", "x.txt"), "--hlo is the program of a capture"),
        (("plan.yaml", "--mesh", "x=2"), "--mesh is of functions"),
        (("plan.yaml",), "plan.yaml"),
        (("m:f", "--capture", "a.json"), "--capture reads a file and runs nothing"),
        (("--capture", "a.json", "--cpu-devices", "2"), "leave out --cpu-devices"),
        (("--capture", "none.trace.json"), "cannot read trace 'none.trace.json': no such file"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "profile", *args)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_a_corrupt_capture_is_one_message(capsys, capture):
    capture.write_bytes(capture.read_bytes()[:-20])
    code, _, err = run(capsys, "profile", "--capture", capture)
    assert code == 2
    assert err.startswith("error: trace ")
    assert "is not a whole gzip file" in err


def rows():
    yield {"what": "overhead", "size": ["matmul"], "seconds": 2e-7}
    yield {"what": "attention", "dtype": "f32", "size": [512], "flops": 1e9, "seconds": 0.1}
    yield {"what": "memory", "size": [2**28], "bytes": 2.0**29, "seconds": 0.05}
    yield {"what": "elementwise", "size": ["adam"], "bytes": 1e8, "seconds": 0.02}
    for n in (64, 512, 1024):
        flops = 2.0 * n**3
        row = {"what": "matmul", "dtype": "f32", "size": [n, n, n], "flops": flops}
        yield {**row, "seconds": 1e-6 + flops / 4e10}


def test_calibrate_writes_a_file_that_prices_a_matmul(capsys, tmp_path, monkeypatch):
    said = {
        "rows": list(rows()),
        "kind": "cpu",
        "platform": "cpu",
        "devices": 1,
        "memory_bytes": 16e9,
        "cores": 2,
        "versions": {"jax": "0"},
    }
    monkeypatch.setattr(workflow, "run_here", lambda *_, **__: said)
    file = tmp_path / "here.toml"
    code, out, _ = run(capsys, "calibrate", "--name", "desk", "-o", file)
    assert code == 0
    assert f"--hw {file} --on desk:1" in out
    assert "matmul f32, best          40 GFLOP/s" in out
    code, out, _ = run(capsys, "hw", "show", "desk", "--hw", file, "--detail")
    assert code == 0
    assert "shardwise calibrate on" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-o", "here.txt"), "must end in"),
        (("-o", "no/such/here.toml"), "does not exist"),
        (("-o", "here.toml", "--name", "A b"), "is not a chip name"),
        (("-o", "here.toml", "--cpu-devices", "0"), "it must be a whole number of at least 1"),
        ((), "name the hardware file to write"),
    ],
)
def test_calibrate_refuses_before_it_measures(capsys, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "calibrate", *args)
    assert code == 2
    assert message in err
