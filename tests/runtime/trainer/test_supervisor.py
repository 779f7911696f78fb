"""A supervisor names a lost process, passes on its workers' errors, and leaves none alive."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from shardwise.errors import BadRequest, ShardwiseError
from shardwise.runtime.processes import ProcessGroup
from shardwise.runtime.trainer import supervisor
from shardwise.runtime.trainer.supervisor import Watch

STEP = 'print(json.dumps({"progress": {"step": 4}}), flush=True)'
RESULT = 'print(json.dumps({"result": {"me": me}}), flush=True)'
WAIT = "time.sleep(60)"
ABORT = f"{STEP}; time.sleep(2); os.abort()"


def error(kind, text):
    said = {"error": {"kind": kind, "text": text}}
    return f"print({json.dumps(json.dumps(said))}, flush=True); sys.exit(2)"


def watch(tmp_path, scripts, indices=None, count=None):
    """Workers that run `scripts[index]`."""
    code = f"import json, os, signal, sys, time\nme = int(sys.argv[1])\nexec({scripts!r}[me])"
    indices = list(range(len(scripts))) if indices is None else indices
    return Watch(
        command=[sys.executable, "-c", code],
        indices=indices,
        count=count or len(scripts),
        folder=tmp_path / "processes",
        place="host:1",
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(supervisor, "BEAT", 0.1)
    monkeypatch.setattr(supervisor, "SILENCE", 1.5)
    monkeypatch.setattr(supervisor, "GRACE", 4.0)


def test_the_first_workers_progress_and_result(tmp_path):
    heard = []
    assert watch(tmp_path, [f"{STEP}; {RESULT}", RESULT]).run(heard.append) == {"me": 0}
    assert heard == [{"step": 4}]


@pytest.mark.parametrize(
    "survivor", [ABORT, WAIT, error("ShardwiseError", "Gloo all-reduce failed")]
)
def test_a_killed_process_is_named_whatever_the_others_do(tmp_path, survivor):
    killed = f"{STEP}; time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(
        ShardwiseError,
        match=r"process 1 of 2 on \S+ was killed by SIGKILL after step 4; the others were stopped "
        r"because they cannot continue without it\. Saved checkpoints are kept: start all "
        "2 again with "
        "--resume",
    ):
        watch(tmp_path, [survivor, killed]).run(lambda _: None)


def test_a_workers_own_error_is_passed_on(tmp_path):
    scripts = [error("ShardwiseError", "distributed service is gone"), error("BadRequest", "no x")]
    with pytest.raises(BadRequest, match=r"^process 1 of 2: no x$"):
        watch(tmp_path, scripts).run(lambda _: None)


@pytest.mark.slow
def test_no_step_at_all_means_that_they_did_not_meet(tmp_path):
    with pytest.raises(ShardwiseError, match="did not reach the others at host:1; start all 2"):
        watch(tmp_path, ["os.abort()"], indices=[0], count=2).run(lambda _: None)


def both(tmp_path, first, second):
    """Two supervisors, as on two machines; the error of each."""
    found = {}

    def one(index):
        try:
            watch(tmp_path, [first, second], indices=[index]).run(lambda _: None)
        except ShardwiseError as raised:
            found[index] = str(raised)

    threads = [threading.Thread(target=one, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.slow
def test_supervisors_tell_each_other(tmp_path):
    killed = f"{STEP}; time.sleep(2); os.kill(os.getpid(), signal.SIGKILL)"
    found = both(tmp_path, f"{STEP}; time.sleep(2.3); os.abort()", killed)
    assert all("process 1 of 2" in text and "SIGKILL" in text for text in found.values())
    assert len(found) == 2


@pytest.mark.slow
def test_a_silent_machine_is_lost(tmp_path):
    """Its supervisor is gone too: the file's beat stands still."""
    folder = tmp_path / "processes"
    folder.mkdir()
    said = {"index": 1, "host": "far", "state": "running", "sure": False, "how": "", "step": 9}

    def beat():
        for i in range(15):
            (folder / "00001.part").write_text(json.dumps({**said, "beat": i}))
            (folder / "00001.part").rename(folder / "00001.json")
            time.sleep(0.1)

    thread = threading.Thread(target=beat)
    thread.start()
    with pytest.raises(ShardwiseError, match=r"process 1 of 2 on far sent no message .*step 9"):
        watch(tmp_path, [f"{STEP}; {WAIT}", ""], indices=[0]).run(lambda _: None)
    thread.join()


def test_an_old_runs_file_says_nothing(tmp_path):
    folder = tmp_path / "processes"
    folder.mkdir()
    said = {"index": 1, "host": "far", "state": "lost", "sure": True, "how": "x", "step": 9}
    (folder / "00001.json").write_text(json.dumps({**said, "beat": 1}))
    work = f"{STEP}; time.sleep(1); {RESULT}"
    assert watch(tmp_path, [work, ""], indices=[0]).run(lambda _: None) == {"me": 0}


def test_no_worker_outlives_its_supervisor(tmp_path):
    """Killed with SIGKILL, a supervisor takes its workers with it."""
    worker = (
        "import os, time; from shardwise.boundary.child import follow_parent; "
        f"follow_parent(); open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); "
        "time.sleep(60)"
    )
    parent = (
        "import subprocess, sys; "
        f"subprocess.Popen([sys.executable, '-c', {worker!r}], stdin=subprocess.PIPE).wait()"
    )
    child = subprocess.Popen([sys.executable, "-c", parent])
    until = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.1)
    pid = int((tmp_path / "pid").read_text())
    child.kill()
    child.wait()
    while _runs(pid):
        assert time.monotonic() < until
        time.sleep(0.1)


def _runs(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"coordinator": "here"}, "--coordinator 'here' is not HOST:PORT"),
        ({"count": 0}, "--processes is 0"),
        ({"index": 1}, "--process is given without --processes"),
        ({"count": 2, "index": 2, "coordinator": "h:1"}, r"--process 2 is outside 0\.\.1"),
        ({"count": 2, "index": 1}, "--process is given without --coordinator"),
    ],
)
def test_processes_that_make_no_sense_are_refused(values, text):
    with pytest.raises(BadRequest, match=text):
        ProcessGroup(**values)
