"""One training in a folder at a time; nothing stale is left by whatever ended it."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from runtime.trainer.made import make_run
from shardwise.errors import BadRequest
from shardwise.runtime.trainer import lock, train
from shardwise.runtime.trainer.lock import sole

HOLDER = """
import sys, time
from pathlib import Path
from shardwise.runtime.trainer.lock import sole
with sole(Path(sys.argv[1]), "run-00000", print):
    print("held", flush=True)
    time.sleep(60)
"""


def quiet(text):
    raise AssertionError(text)


@pytest.mark.slow
def test_a_second_training_names_the_first_and_a_killed_one_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    child = subprocess.Popen([sys.executable, "-c", HOLDER, out], stdout=subprocess.PIPE)
    with child:
        assert child.stdout
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(
            BadRequest,
            match=rf"^process {child.pid} on \S+ is already training in '{out}'; wait for it, "
            "stop it, "
            "or give another --out$",
        ):
            train(make_run(tmp_path, out=out))
        assert not (out / "checkpoints").exists()
        child.send_signal(signal.SIGKILL)
    assert train(make_run(tmp_path, out=out)).steps == 6


def test_a_lock_waits_as_long_as_it_may(tmp_path):
    with sole(tmp_path, "a", quiet), sole(tmp_path, "b", quiet):
        began = time.monotonic()
        with pytest.raises(BadRequest, match=rf"process {os.getpid()} on"):
            sole(tmp_path, "a", quiet, 0.3).__enter__()
        assert time.monotonic() - began > 0.3
    with sole(tmp_path, "a", quiet):
        pass


def test_a_disk_without_locks_is_said(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", none)
    said = []
    with sole(tmp_path, "a", said.append):
        pass
    assert said == [f"'{tmp_path}' has no locks; a second training in it is not detected"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match=r"cannot write to --out '.*': Not a directory"):
        train(make_run(tmp_path, out=tmp_path / "file" / "out"))
