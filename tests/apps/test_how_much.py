"""-q, -v and --brief, and how warnings stand below a page."""

import shlex
from pathlib import Path

import pytest
from tests.apps.commands import document, run
from tests.plans.test_files import FIVE

SMALL = ("plan", "show", "audit:megatron-16b")


def test_brief_is_the_first_lines(capsys):
    code, out, _ = run(capsys, *SMALL, "--brief")
    assert code == 0
    assert "step " in out
    assert "where the step goes" not in out
    assert "more:" not in out


@pytest.mark.usefixtures("rows_left_out")
@pytest.mark.parametrize("asked", [["--on", "h100:1"], ["--on", "h100", "--rate", "5"]])
def test_brief_of_a_served_model_fits_a_terminal(capsys, asked):
    """24 lines of 80 columns, of which the command takes one."""
    words = ["--model", "llama-3.2-1b", "--input", "512", "--output", "64", *asked]
    _, out, _ = run(capsys, "plan", "serve", *words, "--brief")
    lines = out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("  cost ") for line in lines)


def test_quiet_has_no_hints_and_no_warnings(capsys):
    config = ("model", "diff", "llama-3-8b", "llama-3-70b")
    assert "note: " in run(capsys, *config)[2]
    code, out, err = run(capsys, *config, "-q")
    assert (code, err) == (0, "")
    assert "more:" not in out


def test_verbose_says_where_choices_come_from(capsys):
    code, out, _ = run(capsys, *SMALL, "-v", "--set", "remat=none")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["remat", "none", "flag"] in rows
    assert ["zero", "1", "file"] in rows or ["zero", "0", "file"] in rows


@pytest.mark.usefixtures("rows_left_out")
def test_brief_keeps_whether_a_load_holds(capsys, tmp_path):
    plan = tmp_path / "plan.yaml"
    words = ["--model", "llama-3.2-1b", "--on", "h100:1", "--input", "256", "--output", "32"]
    run(capsys, "plan", "serve", *words, "--rate", "5", "-o", plan)
    _, out, _ = run(capsys, "simulate", plan, "--requests", "50", "--brief")
    lines = out.splitlines()
    assert len(lines) <= 4
    assert lines[-1].startswith("within targets in this run: ")


def test_a_tight_memory_is_said_in_the_shortest_answer(capsys, tmp_path):
    plan = tmp_path / "five.yaml"
    same = "remat: block\nmicrobatches: 1\nweight_gather: per_pass\n"  # whatever the memory
    plan.write_text(FIVE + same)
    held = document(capsys, "plan", "show", plan)["result"]["peak_bytes_per_chip"]
    for share, said in ((0.95, True), (0.5, False)):
        least = ("--set", f"chip.hbm_usable_bytes={held / share:.0f}")
        code, out, err = run(capsys, "plan", "show", plan, *least, "--brief", "-q")
        (line,) = [line for line in out.splitlines() if line.startswith("  memory")]
        assert (code, err, "GiB is left for fragmentation)" in line) == (0, "", said)


def test_a_note_is_no_warning(capsys):
    words = ("roofline", "--on", "v5e", "--matmul", "64x256x256")
    doc = document(capsys, *words)
    assert (doc["warnings"], len(doc["notes"])) == ([], 1)
    assert run(capsys, *words)[2].startswith("note: no batch reaches the peak")
    doc = document(capsys, "model", "show", "gemma-3-12b")
    assert any("vision tower" in line for line in doc["warnings"])


def test_what_to_type_next_can_be_copied(capsys, tmp_path, monkeypatch):
    """Lines of at most 100 columns, which a shell joins to the command that was meant."""
    monkeypatch.chdir(tmp_path)
    plan = Path("a folder with a long name and blanks") / "plan.yaml"
    plan.parent.mkdir()
    plan.write_text(FIVE)
    _, out, _ = run(capsys, "plan", "show", plan)
    step = out.partition("next: what would be faster:\n")[2].partition("\n  more:")[0]
    assert max(map(len, step.splitlines())) <= 100
    words = shlex.split(step)
    assert words[:3] == ["shardwise", "plan", "train"]
    assert words[words.index("--against") + 1] == str(plan)
