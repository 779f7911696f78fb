"""A child: isolated with all that it starts, limited, and gone with its folder, however it ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from shardwise.boundary.child import environment_of, python, safe_entries, start
from shardwise.errors import ShardwiseError
from shardwise.profiler import run_function, run_source


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder in which this process, and its children, make theirs."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


LEAVES_A_FOLDER = """
import os, pathlib, subprocess, sys, tempfile, time
made = tempfile.mkdtemp(prefix="shardwise-dump-")
pathlib.Path(made, "module.txt").write_text("HloModule a")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["SAYS"]).write_text(f"{made} {os.getpid()} {child.pid}")
time.sleep(600)
"""


@pytest.mark.slow
def test_what_a_stopped_child_dumped_is_gone_and_what_it_started(temporary, tmp_path, monkeypatch):
    monkeypatch.setenv("SAYS", str(tmp_path / "said"))
    with pytest.raises(ShardwiseError, match="was stopped after 3 s"):
        run_source(LEAVES_A_FOLDER, seconds=3)
    made, *pids = (tmp_path / "said").read_text().split()
    assert not Path(made).exists()
    assert list(temporary.iterdir()) == []
    until(lambda: not any(map(runs, pids)))


SOURCE = f"from shardwise.profiler import run_source; run_source({LEAVES_A_FOLDER!r})"
FUNCTION = (  # as a compile does, whose answer lies in a folder of the caller's
    "import pathlib, tempfile; from shardwise.profiler import run_function\n"
    "with tempfile.TemporaryDirectory() as made:\n"
    f"    arguments = {{'source': {LEAVES_A_FOLDER!r}, 'styles': []}}\n"
    "    run_function('shardwise.profiler.jobs:run_programs', {'cases': [arguments]},\n"
    "                 folder=pathlib.Path(made))\n"
)


@pytest.mark.parametrize(
    ("name", "code"),
    [("SIGKILL", SOURCE), ("SIGTERM", SOURCE), ("SIGINT", SOURCE), ("SIGKILL", FUNCTION)],
)
def test_a_child_and_its_folder_are_gone_with_the_parent(temporary, tmp_path, name, code):
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", listens + code],
        env=os.environ | {"SAYS": str(tmp_path / "said")},
        stderr=subprocess.DEVNULL,
    )
    until(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text())
    _, *pids = (tmp_path / "said").read_text().split()
    parent.send_signal(getattr(signal, name))
    parent.wait()
    until(lambda: not any(map(runs, pids)))
    until(lambda: list(temporary.iterdir()) == [])


def test_a_child_that_is_killed_leaves_nothing(temporary):
    code = "import os, signal, tempfile; tempfile.mkdtemp(); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ShardwiseError, match="it crashed with SIGKILL"):
        run_source(code)
    assert list(temporary.iterdir()) == []


def test_a_command_that_cannot_be_started_leaves_nothing(temporary):
    with pytest.raises(FileNotFoundError):
        start([str(temporary / "nothing")])
    assert list(temporary.iterdir()) == []


def test_the_children_of_a_child_are_isolated_too(tmp_path, monkeypatch):
    """Neither the current folder nor that of a script is on their path."""
    monkeypatch.chdir(tmp_path)
    below = tmp_path / "below"
    below.mkdir()
    show = "import json, sys; print(json.dumps(sys.path))"
    (below / "script.py").write_text(show)
    code = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {show!r}], check=True)
subprocess.run([sys.executable, {str(below / "script.py")!r}], check=True)
"""
    for line in run_source(code).splitlines():
        assert not {"", str(tmp_path), str(below)} & set(json.loads(line))


def test_this_very_package_runs_in_a_child_and_its_folder_leads_nothing(tmp_path, monkeypatch):
    """Found through no PYTHONPATH: what lies beside the package does not lead Python's own."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import json, shardwise, sys; print(json.dumps([shardwise.__file__, sys.path]))"
    file, path = json.loads(run_source(code))
    import shardwise

    assert file == shardwise.__file__
    assert str(Path(shardwise.__file__).parents[1]) not in path[:1]


def test_a_limit_on_memory_is_set_before_anything_is_imported():
    done = start(python("os:getpid", memory_bytes=2**20), stderr=subprocess.DEVNULL)
    assert done.wait(60)
    assert done.process.returncode != 0
    done.stop()
    done.stop()  # once more does nothing


def test_a_child_without_an_answer_is_an_error():
    with pytest.raises(ShardwiseError, match="without an answer"):
        run_function("os:_exit", {"status": 0})


@pytest.mark.parametrize(
    ("path", "kept"),
    [("", []), (":", []), (".", []), ("/a::/b:.", ["/a", "/b"]), ("./:../{here}", [])],
)
def test_entries_that_mean_the_current_folder_are_dropped(tmp_path, monkeypatch, path, kept):
    monkeypatch.chdir(tmp_path)
    assert safe_entries(path.format(here=tmp_path.name)) == kept
    assert safe_entries("below") == [str(tmp_path / "below")]


def test_a_current_folder_that_is_gone_holds_nothing(tmp_path):
    (tmp_path / "gone").mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd()); from shardwise.profiler import run_source; "
        "from shardwise.boundary.child import append_current_folder; append_current_folder(); "
        "print(run_source('print(1)'))"
    )
    around = os.environ | {"PYTHONPATH": os.environ["PYTHONPATH"] + ":.:below"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "gone", env=around, capture_output=True
    )
    assert done.stdout.split() == [b"1"], done.stderr


def test_an_empty_path_is_no_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "")
    assert "PYTHONPATH" not in environment_of({}, tmp_path)


def test_what_a_child_prints_need_not_be_text():
    code = "import os, sys; os.write(2, b'\\xff\\xfe bad\\n'); sys.exit(3)"
    with pytest.raises(ShardwiseError, match="bad"):
        run_source(code)
