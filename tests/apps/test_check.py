"""`shardwise check`: a launch file's verdict, its changes as diffs, and the changed file."""

from tests.apps.commands import document, refused, run
from tests.commands.plan_file.test_check import SMALL


def test_a_script_is_checked_and_changed(capsys, tmp_path):
    script, changed = tmp_path / "run.sh", tmp_path / "changed.sh"
    script.write_text(SMALL)
    asked = ["check", script, "--on", "h100:1"]
    found = document(capsys, *asked)["result"]
    assert found["program"] == "megatron"
    assert found["fits"] is True
    assert found["changes"][0]["fits"] is True
    code, said, err = run(capsys, *asked, "--apply", "1", "-o", changed)
    assert code == 0, err
    assert said.startswith(f"wrote {changed}\n")
    assert changed.read_text() != SMALL
    assert "say which with --apply" in refused(capsys, [*map(str, asked), "-o", "other"])
