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
    assert "choose it with --apply" in refused(capsys, [*map(str, asked), "-o", "other"])


def test_an_error_is_part_of_the_document(capsys, tmp_path):
    (tmp_path / "run.sh").write_text(SMALL)
    (tmp_path / "log").write_text(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8GiB."
    )
    asked = ["check", tmp_path / "run.sh", "--on", "h100:1", "--from", "megatron"]
    failed = document(capsys, *asked, "--error", tmp_path / "log")["result"]["failed"]
    assert (failed["source"], failed["wanted_bytes"]) == ("XLA's allocator", 8 * 2**30)
