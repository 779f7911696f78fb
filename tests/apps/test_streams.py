"""The streams of a command: closed pipes, full disks, encodings, Ctrl-C, and what is printable."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.apps.commands import refused

from shardwise.apps.cli import COMMANDS, main
from shardwise.apps.cli.streams import printable

SHARDWISE = [sys.executable, "-m", "shardwise"]
LONG = "hw list --json"


def shell(line: str, **env: str) -> subprocess.CompletedProcess:
    """A line of bash in which `shardwise` is this one; pipefail, so that each exit code counts."""
    script = f'set -o pipefail; shardwise() {{ "{sys.executable}" -m shardwise "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, timeout=60, env={**os.environ, **env}
    )


@pytest.mark.parametrize("line", ["hw list --json", "hw list", "--help", "model list", "shard -h"])
def test_a_reader_that_leaves_is_no_error(line):
    done = shell(f"shardwise {line} | head -c 1")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_was_never_there():
    done = shell(f"shardwise {LONG} | true")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("line", [LONG, "hw list", "--help", "model list --json"])
def test_a_full_disk_is_one_message(line):
    done = shell(f"shardwise {line} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == (
        b"error: cannot write the answer: No space left on device; free some space, or write "
        b"elsewhere\n"
    )


@pytest.mark.parametrize("env", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}], ids=str)
def test_stdout_that_cannot_encode(env):
    array = "A[Iₓ]"
    line = f"shardwise shard '{array}' --dims I=8 --mesh X=2"
    done = shell(line, **env)
    assert done.returncode == 0, done.stderr
    done = shell(f"{line} --json", **env)
    assert json.loads(done.stdout)["inputs"]["array"] == array


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed, tmp_path):
    done = shell(f"shardwise hw list --csv {tmp_path}/out.csv {closed}")
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    # The file took no standard stream's number, so that nothing else was written into it.
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len({line.count(",") for line in lines[:2]}) == 1


def test_a_file_that_is_stdout(tmp_path):
    """Redirected, /dev/stdout is a file; the page and the table go into it one after another."""
    csv = shell("shardwise hw list --csv /dev/stdout --json | head -c 3")
    assert csv.stdout == b"{\n "
    done = shell(f"shardwise hw list --csv /dev/stdout > {tmp_path}/both")
    assert done.returncode == 0, done.stderr
    both = (tmp_path / "both").read_text()
    assert both.index("Peaks are dense") < both.index("\nchip,")


def test_an_error_without_stderr_keeps_its_code():
    assert shell("shardwise hw show nothing 2>&-").returncode == 2
    assert shell("shardwise hw show nothing 2>/dev/full").returncode == 2


def test_bytes_that_are_no_text_in_arguments():
    done = shell("shardwise hw show $'v5\\xff'")
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"'v5\\udcff'" in done.stderr


def test_a_message_holds_no_control_characters(capsys):
    message = refused(capsys, ["hw", "show", "v5\x1b[2J\x07\u202e"])
    assert "v5\\x1b[2J\\x07\\u202e" in message
    assert message.isprintable()


def test_what_a_person_can_read_is_left_alone():
    text = "A[Iₓ] → 3 µs\n\tdone"
    assert printable(text) == text
    assert printable("\x1b]0;x\x9c") == "\\x1b]0;x\\x9c"
    assert printable("a\udcffb\u2028") == "a\\udcffb\\u2028"


def test_ctrl_c_is_one_line():
    """Interrupted while it reads a plan from a pipe that says nothing."""
    code = (
        "import os, signal, threading, time\n"
        "import click, shardwise.apps.cli as cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's & ignores it
        "@click.command()\n"
        "def wait():\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(30)\n"
        "cli.cli.get_command = lambda ctx, name: wait\n"
        "cli.main(['hw'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"error: interrupted\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [(MemoryError(), "out of memory"), (RecursionError("deep"), "nested too deeply")],
    ids=str,
)
def test_what_no_door_foresaw_is_one_message(monkeypatch, capsys, error, said):
    def fail(*_):
        raise error

    monkeypatch.setattr("shardwise.apps.cli.cli.get_command", fail)
    assert said in refused(capsys, [next(iter(COMMANDS))], code=1)


def test_our_own_mistakes_keep_their_traceback(monkeypatch):
    def fail(*_):
        raise ValueError("ours")

    monkeypatch.setattr("shardwise.apps.cli.cli.get_command", fail)
    with pytest.raises(ValueError, match="ours"):
        main(["hw"])
