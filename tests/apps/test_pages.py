"""Every command whose result is an answer prints one page: 30 lines of 100 columns at most.

Exempt are files written to standard output, lists, `validate`, `plan sweep`, what options ask for
beyond the page (--detail, --why, --book, -v, --top, --draw), and programs that run (`train`).
"""

import contextlib
import gzip
import json
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import golden  # noqa: E402
from tests.apps.test_profile import EVENTS, HLO, rows  # noqa: E402
from tests.tiers import spread  # noqa: E402

from shardwise.commands.base.layout import HEIGHT, WIDTH  # noqa: E402
from shardwise.commands.run.calibration import machine  # noqa: E402
from shardwise.hardware.catalogue import chip_ids  # noqa: E402
from shardwise.models.zoo import zoo_names  # noqa: E402

DOC = golden.read(ROOT / "tests" / "golden_answers" / "answers.json.gz")
SHARES = {
    # Of each kind of golden request, one in so many is printed.
    "train": 30,
    "show": 25,
    "serve show": 10,
    "audit": 4,
    "shard": 6,
    "compare": 4,
    "roofline": 6,
    "train against": 2,
    "diff": 3,
    "figure": 1,
    "model": 3,
}
ASKED = [
    row
    for kind, every in SHARES.items()
    for row in [r for r in DOC["rows"] if r["kind"] == kind and not r["said"]["code"]][::every]
]
SEARCHES = ("train", "train against", "compare")
FIRST = {row["kind"]: place for place, row in reversed([*enumerate(ASKED)])}
LAST = {row["kind"]: place for place, row in enumerate(ASKED)}
BY_RUN = spread(
    ASKED,
    quick=[place for kind, place in FIRST.items() if kind not in SEARCHES],
    slow=[place for kind, place in LAST.items() if kind in SEARCHES or place != FIRST[kind]],
)


def printed(words, files=None, program=""):
    """What a command prints on both streams, in a folder with these plan files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, (base, changes) in (files or {}).items():
            plan = golden.varied(DOC["plans"][base], changes)
            Path(name).write_text(yaml.safe_dump(plan, sort_keys=False))
        with golden.stand_in(program):
            code, out, err = golden.run(list(map(str, words)))
    assert not code, err
    return out + err


def check(text):
    lines = text.rstrip("\n").splitlines()
    assert len(lines) <= HEIGHT, f"{len(lines)} lines\n{text}"
    wide = [line for line in lines if len(line) > WIDTH]
    assert not wide, wide
    return lines


def without_top(words):
    """The words of a request, which asks for more rows than a page has."""
    found = list(words)
    if "--top" in found:
        at = found.index("--top")
        del found[at : at + 2]
    return found


@pytest.mark.parametrize("row", BY_RUN, ids=lambda row: " ".join(row["words"][:4]))
def test_a_golden_request_is_answered_on_a_page(row):
    words = without_top(row["words"])
    if "--to" in words or "--draw" in words:
        pytest.fail("a request that prints a file is no page; leave its kind out of SHARES")
    check(printed(words, row.get("files"), row.get("program", "")))


@pytest.mark.parametrize("chip", chip_ids())
def test_a_chip_is_a_page(chip):
    check(printed(["hw", "show", chip]))


@pytest.mark.parametrize("name", zoo_names())
def test_a_model_is_a_page(name):
    check(printed(["model", "show", name]))


@pytest.mark.parametrize("command", spread(["explain", "compile", "compare"], quick=0, slow=1))
def test_a_program_is_a_page(command):
    (row, *_) = [r for r in DOC["rows"] if r["kind"] == "compare"]
    lines = check(printed([command, "plan.yaml"], row["files"], row["program"]))
    assert "  more: --detail" in lines


def test_a_difference_of_chips_is_a_page():
    check(printed(["hw", "diff", "v5e", "h100"]))


@pytest.mark.parametrize("hlo", [False, True])
def test_a_capture_is_a_page(tmp_path, hlo):
    capture, text = tmp_path / "run.trace.json.gz", tmp_path / "step.txt"
    capture.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    text.write_text(HLO)
    check(printed(["profile", "--capture", capture, *(["--hlo", text] if hlo else [])]))


def test_a_calibration_is_a_page(monkeypatch):
    said = {"rows": list(rows()), "kind": "cpu", "platform": "cpu", "devices": 1}
    said |= {"memory_bytes": 16e9, "cores": 2, "versions": {"jax": "0"}}
    monkeypatch.setattr(machine, "run_here", lambda *_, **__: said)
    check(printed(["calibrate", "--name", "desk", "-o", "here.toml"]))


def test_what_is_left_out_is_said_and_detail_has_it():
    words = ["model", "diff", *list(zoo_names())[:4]]
    page, whole = printed(words), printed([*words, "--detail"])
    assert "more lines with --detail" in page or "the same in all" in page
    assert len(whole.splitlines()) > len(page.splitlines())


def test_a_page_of_many_lines_is_cut_with_a_hint():
    words = ["shard", "A[I_X]", "--dims", "I=64", "--mesh", "X=64"]
    lines = check(printed(words))
    assert lines[-2].strip().startswith("and 52 more devices")
    assert len(printed([*words, "--detail"]).splitlines()) > 64


def test_a_difference_of_plans_with_long_paths_is_a_page():
    check(printed(["plan", "diff", "audit:megatron-7.1b", "audit:megatron-70b"]))


SERVED = ["plan", "serve", "--model", "llama-3-8b", "--input", "512", "--output", "32"]
SERVED_ON = {
    "a rate": ["--on", "h100", "--rate", "20", "--tpot", "40ms"],
    "a slice": ["--on", "v5e:2x2", "--tpot", "50ms"],
    "chips side by side": ["--on", "h100,v6e", "--rate", "20"],
    "two pools": ["--on", "h100", "--rate", "20", "--pools", "two"],
    "other dtypes": ["--on", "h100", "--rate", "20", "--weights", "fp8", "--kv", "fp8"],
    "what holds nowhere": ["--on", "h100:1", "--ttft", "12ms", "--anyway"],
}


@pytest.mark.parametrize("words", spread(SERVED_ON.values(), quick=[5], slow=[0, 1]), ids=SERVED_ON)
def test_servers_are_a_page(words):
    check(printed([*SERVED, *words]))


SIMULATED = {
    "its own load": [],
    "another rate": ["--rate", "40", "--requests", "300"],
    "far too much": ["--rate", "4000", "--requests", "300"],
    "bursts": ["--rate", "20", "--cv", "2", "--requests", "200"],
    "the largest rate": ["--find-rate"],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A plan of `plan serve`, for a rate."""
    path = tmp_path_factory.mktemp("served") / "plan.yaml"
    check(printed([*SERVED, *SERVED_ON["a rate"], "-o", path]))
    return path


@pytest.mark.parametrize("words", spread(SIMULATED.values(), quick=0, slow=[0, 4]), ids=SIMULATED)
def test_a_simulation_is_a_page(served, words):
    check(printed(["simulate", served, *words]))


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--resolve"], ["--set", "workload.rate=4000"]])
def test_a_plan_of_servers_is_a_page(served, words):
    check(printed(["plan", "show", served, *words]))


@pytest.mark.slow
def test_two_plans_of_servers_are_a_page(served, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(served.read_text().replace("rate: 20.0", "rate: 10.0"))
    check(printed(["plan", "diff", served, other]))
