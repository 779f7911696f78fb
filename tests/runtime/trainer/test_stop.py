"""Ctrl-C and SIGTERM: the first is kept until the step is saved, the second ends at once; a
supervisor passes them on."""

import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.tiers import spread

from runtime.trainer.made import make_run
from shardwise.runtime.trainer import read_metrics, train
from shardwise.runtime.trainer.checkpoint import steps_in
from shardwise.runtime.trainer.stop import Signals, Stop

WORKER = """
import json, os, signal, sys, time
def say(m): print(json.dumps(m), flush=True)
def halt(*_):
    say({"halted": True})
    sys.exit(143)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, WHEN)
say({"progress": {"step": STEP}})
time.sleep(60)
"""
SUPERVISOR = """
import os, signal, sys, threading
from pathlib import Path
from shardwise.runtime.trainer.stop import Stop
from shardwise.runtime.trainer.supervisor import Watch
signal.signal(signal.SIGINT, signal.default_int_handler)
folder, number, worker = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
watch = Watch(
    command=[sys.executable, "-c", worker], indices=[0, 1], count=2, folder=folder, place=""
)
threading.Timer(2.0, os.kill, (os.getpid(), number)).start()
if len(sys.argv) > 4:
    threading.Timer(3.0, os.kill, (os.getpid(), number)).start()
try:
    watch.run(print)
except Stop as stop:
    print("stopped by", stop.number)
"""


def supervised(tmp_path, number, *more, step=3, when="halt"):
    worker = WORKER.replace("STEP", str(step)).replace("WHEN", when)
    args = [sys.executable, "-c", SUPERVISOR, tmp_path, str(int(number)), worker, *more]
    began = time.monotonic()
    done = subprocess.run(args, capture_output=True, text=True, timeout=50)
    assert not done.stderr
    return done.stdout, time.monotonic() - began


@pytest.mark.parametrize("number", spread([signal.SIGTERM, signal.SIGINT], quick=0, slow=1))
def test_a_supervisor_passes_a_signal_on_and_all_end(tmp_path, number):
    said, _ = supervised(tmp_path, number)
    assert "stopping after this step is saved" in said
    assert said.endswith(f"stopped by {int(number)}\n")


@pytest.mark.slow
def test_before_the_first_step_there_is_nothing_to_wait_for(tmp_path):
    said, seconds = supervised(tmp_path, signal.SIGTERM, step=0, when="signal.SIG_IGN")
    assert said.endswith("stopped by 15\n")
    assert seconds < 40


@pytest.mark.slow
def test_a_second_signal_ends_workers_that_do_not(tmp_path):
    said, seconds = supervised(tmp_path, signal.SIGTERM, "again", when="signal.SIG_IGN")
    assert said.endswith("stopped by 15\n")
    assert seconds < 40


@pytest.mark.slow
def test_a_worker_that_could_not_listen_yet_is_no_loss(tmp_path):
    said, _ = supervised(tmp_path, signal.SIGTERM, when="signal.SIG_DFL")
    assert said.endswith("stopped by 15\n")


STUCK = """
import ctypes, os, signal, threading
from shardwise.runtime.trainer import stop
stop.GRACE = 0.2
libc = ctypes.CDLL(None)  # whose calls let other threads run, as a compile does
libc.pthread_mutex_lock(lock := ctypes.create_string_buffer(64))
with stop.Signals(lambda text: print(text, flush=True)) as signals, signals.waiting():
    for seconds in (0.5, 1.0):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)).start()
    libc.pthread_mutex_lock(lock)  # never returns
"""


@pytest.mark.slow
def test_a_second_signal_ends_a_process_that_is_stuck():
    args = [sys.executable, "-c", STUCK]
    done = subprocess.run(args, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (143, "")
    assert done.stdout.startswith("stopping after this step")


def test_signals_outside_the_steps_end_at_once():
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stop) as raised, Signals(print):
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_is_kept_and_the_second_raised():
    said = []
    with Signals(said.append) as signals, signals.waiting():
        signal.raise_signal(signal.SIGTERM)
        assert (signals.came, signals.urgent) == (signal.SIGTERM, False)
        with pytest.raises(Stop):
            signal.raise_signal(signal.SIGTERM)
        assert signals.urgent
    assert said == ["stopping after this step is saved; press Ctrl-C again to stop at once"]


def test_sigterm_saves_its_step(tmp_path):
    def end(metrics):
        if metrics.step == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stop) as raised:
        train(make_run(tmp_path), end)
    assert raised.value.number == signal.SIGTERM
    last = read_metrics(tmp_path / "out" / "metrics.jsonl")[-1]["step"]
    assert 3 <= last <= 5
    assert steps_in(tmp_path / "out" / "checkpoints") == [last]
