"""The streams of a command: closed pipes, full disks, encodings, Ctrl-C, and what is printable."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.apps.commands import refused
from tests.tiers import spread

from shardwise.apps.cli import COMMANDS, main
from shardwise.apps.cli.streams import printable

SHARDWISE = [sys.executable, "-m", "shardwise"]
LONG = "hw list --json"


def plain(**env: str) -> dict[str, str]:
    """An environment of its own: PATH and a HOME of the tests, and what is given."""
    home = Path(os.environ["XDG_STATE_HOME"]).parent
    return {"PATH": os.environ["PATH"], "HOME": str(home), **env}


def shell(line: str, **env: str) -> subprocess.CompletedProcess:
    """A line of bash in which `shardwise` is this one, in a plain environment; pipefail, so that
    each exit code counts."""
    script = f'set -o pipefail; shardwise() {{ "{sys.executable}" -m shardwise "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, env=plain(**env))


@pytest.mark.parametrize("line", ["hw list --json", "hw list", "--help", "model list", "shard -h"])
def test_a_reader_that_leaves_is_no_error(line):
    done = shell(f"shardwise {line} | head -c 1")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_was_never_there():
    done = shell(f"shardwise {LONG} | true")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("line", spread(["--help", "hw list", LONG, "model list --json"], 2, 2))
def test_a_full_disk_is_one_message(line):
    done = shell(f"shardwise {line} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == (
        b"error: cannot write the answer: No space left on device; free some space, or write "
        b"elsewhere\n"
    )


@pytest.mark.parametrize(
    "env", spread([{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}], slow=1), ids=str
)
def test_stdout_that_cannot_encode(env):
    array = "A[Iₓ]"
    line = f"shardwise shard '{array}' --dims I=8 --mesh X=2"
    done = shell(line, **env)
    assert done.returncode == 0, done.stderr
    done = shell(f"{line} --json", **env)
    assert json.loads(done.stdout)["inputs"]["array"] == array


@pytest.mark.parametrize(
    ("closed", "code"), [(">&-", 1), ("2>&-", 0), ("<&-", 0), ("<&- >&- 2>&-", 1)]
)
def test_streams_that_are_closed(closed, code, tmp_path):
    """An answer for which there is no stdout is lost, which the code says; files are written."""
    done = shell(f"shardwise hw list --csv {tmp_path}/out.csv {closed}")
    assert done.returncode == code
    said = b"error: cannot write the answer: standard output is closed; write to a file\n"
    assert done.stderr == (said if closed == ">&-" else b"")
    # The file took no standard stream's number, so that nothing else was written into it.
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len({line.count(",") for line in lines[:2]}) == 1


@pytest.mark.parametrize("line", ["--help", "--version", "hw list --json"])
def test_an_answer_for_which_there_is_no_stdout(line):
    assert shell(f"shardwise {line} >&-").returncode == 1
    done = shell(f"shardwise {line} 1</dev/null")
    assert (done.returncode, done.stderr) == (
        1,
        b"error: cannot write the answer: Bad file descriptor; write to a file\n",
    )


def test_a_reader_that_leaves_takes_no_file_with_it(tmp_path):
    done = shell(f"shardwise hw list --csv {tmp_path}/out.csv | true")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out.csv").read_text().startswith("chip,")


def test_a_pipe_that_does_not_wait_loses_nothing():
    """As Node's are; the answer is longer than the pipe."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    done = subprocess.Popen([*SHARDWISE, *LONG.split()], stdout=writing, env=plain())
    os.close(writing)
    time.sleep(0.5)
    with open(reading, "rb") as pipe:
        assert json.loads(pipe.read())["result"]
    assert done.wait() == 0


def test_a_socket_that_is_gone_is_a_reader_that_leaves():
    ours, theirs = socket.socketpair()
    theirs.close()
    done = subprocess.run(
        [*SHARDWISE, "hw", "list"], stdout=ours, stderr=subprocess.PIPE, env=plain()
    )
    ours.close()
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_file_that_is_stdout(tmp_path):
    """Redirected, /dev/stdout is a file; the page and the table go into it one after another."""
    csv = shell("shardwise hw list --csv /dev/stdout --json | head -c 3")
    assert csv.stdout == b"{\n "
    done = shell(f"shardwise hw list --csv /dev/stdout > {tmp_path}/both")
    assert done.returncode == 0, done.stderr
    both = (tmp_path / "both").read_text()
    assert both.index("Peaks are dense") < both.index("\nchip,")


ENVIRONMENTS = (
    "",
    "PYTHONUNBUFFERED=1",
    "PYTHONIOENCODING=ascii:strict",
    "PYTHONIOENCODING=utf-16",
    "PYTHONUTF8=0 LC_ALL=C PYTHONCOERCECLOCALE=0",
    "PYTHONUTF8=1",
    "LANG=C",
    "LANG=nowhere.UTF-8",
    "PYTHONDEVMODE=1",
    "PYTHONOPTIMIZE=2",
    "PYTHONINTMAXSTRDIGITS=0",
    "PYTHONSAFEPATH=1",
    "TERM=dumb COLUMNS=40 NO_COLOR=1",
)
"""What changes Python's streams, or what it prints at its end."""


@pytest.mark.parametrize("given", spread(ENVIRONMENTS, quick=[4, 9], slow=[0, 3, 8]))
def test_exit_codes_are_ours_in_every_environment(given):
    env = dict(pair.split("=") for pair in given.split())
    for line, code in (
        ("hw show nothing 2>/dev/full", 2),
        ("nothing 2>&1 | true", 2),
        ("--help >/dev/full 2>/dev/full", 1),
        ("--help >&- 2>/dev/full", 1),
    ):
        assert shell(f"shardwise {line}", **env).returncode == code, line


def command(body: str, **streams) -> subprocess.CompletedProcess:
    """A run of a command whose function is this."""
    code = (
        "import click, shardwise.apps.cli as cli\n"
        "@click.command()\n"
        f"def made():\n    {body}\n"
        "cli.cli.get_command = lambda *_: made\n"
        "cli.main(['hw'])\n"
    )
    return subprocess.run([sys.executable, "-c", code], env=plain(), timeout=60, **streams)


def test_a_run_whose_stderr_takes_nothing_goes_on():
    """Its notes and its progress are dropped, its answer is not."""
    body = "click.echo('a note', err=True); click.echo('the answer')"
    with open("/dev/full", "w") as full:
        done = command(body, stdout=subprocess.PIPE, stderr=full)
    assert (done.returncode, done.stdout) == (0, b"the answer\n")


def test_our_own_mistake_ends_with_its_code_where_nothing_can_be_written():
    with open("/dev/full", "w") as full:
        done = command("print('begun', end=''); raise ValueError('ours')", stdout=full, stderr=full)
    assert done.returncode == 1


def test_a_connection_that_breaks_is_no_reader_that_leaves(monkeypatch, capsys):
    def fail(**_):
        raise BrokenPipeError

    monkeypatch.setattr("shardwise.apps.cli.hw.list_chips.callback", fail)
    assert "closed by its other end" in refused(capsys, ["hw", "list"], code=1)


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
