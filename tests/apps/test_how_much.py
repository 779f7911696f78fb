"""-q, -v and --brief, and how warnings stand below a page."""

from tests.apps.commands import run

SMALL = ("plan", "show", "audit:megatron-16b")


def test_brief_is_the_first_lines(capsys):
    code, out, _ = run(capsys, *SMALL, "--brief")
    assert code == 0
    assert "step " in out
    assert "where the step goes" not in out
    assert "more:" not in out


def test_quiet_has_no_hints_and_no_warnings(capsys):
    config = ("model", "diff", "llama-3-8b", "llama-3-70b")
    assert "warning: " in run(capsys, *config)[2]
    code, out, err = run(capsys, *config, "-q")
    assert (code, err) == (0, "")
    assert "more:" not in out


def test_verbose_says_where_choices_come_from(capsys):
    code, out, _ = run(capsys, *SMALL, "-v", "--set", "remat=none")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["remat", "none", "flag"] in rows
    assert ["zero", "1", "file"] in rows or ["zero", "0", "file"] in rows


def test_brief_keeps_whether_a_load_holds(capsys, tmp_path):
    plan = tmp_path / "plan.yaml"
    words = ["--model", "llama-3.2-1b", "--on", "h100:1", "--input", "256", "--output", "32"]
    run(capsys, "plan", "serve", *words, "--rate", "5", "-o", plan)
    _, out, _ = run(capsys, "simulate", plan, "--requests", "50", "--brief")
    lines = out.splitlines()
    assert len(lines) <= 4
    assert lines[-1].startswith("holds: ")
