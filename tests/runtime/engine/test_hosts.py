"""Two hosts serve one mesh: their answer is one host's, and neither outlives the other for long."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
from tests.runtime.engine.test_served_plans import HEADERS, checkpoint, plan_of

from runtime.trainer.made import QUICK
from shardwise.errors import BadRequest
from shardwise.runtime.engine import Sampling
from shardwise.runtime.engine.hosts import HostMessage, _packed, _unpacked, meeting_place
from shardwise.runtime.engine.opening import EngineSettings, open_engine
from shardwise.runtime.processes import ProcessGroup
from shardwise.runtime.text.model_text import read_model_text

__all__ = ["checkpoint"]
LONGEST = 60
"""Seconds in which a host ends after another one."""


def test_a_message_arrives_as_it_was_sent():
    arrays = {"tokens": np.arange(6, dtype=np.int32).reshape(2, 3), "none": np.zeros(0, np.uint32)}
    sent = HostMessage("step", {"steps": 2, "choices": {"drawn": True}}, arrays)
    got = _unpacked(_packed(sent)[8:])
    assert (got.kind, got.words) == (sent.kind, sent.words)
    assert got.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert got.arrays[name].dtype == array.dtype
        assert np.array_equal(got.arrays[name], array)


def test_hosts_that_cannot_meet_or_share_are_refused(checkpoint):
    with pytest.raises(BadRequest, match="--processes and --process on each"):
        meeting_place(ProcessGroup(coordinator="a:1", count=2))
    assert meeting_place(ProcessGroup(coordinator="a:1", count=2, index=0)) == ("a", 2)
    nobody = object.__new__(type("Nobody", (), {}))
    for changes, said in (({"replicas": 2}, "one replica"), ({}, "make them equal")):
        with pytest.raises(BadRequest, match=said):
            open_engine(checkpoint, EngineSettings(**changes), hosts=nobody)


def free_ports():
    """A port with a free one after it."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


class TwoHosts:
    """Two processes of `serve`, the logs of which are files."""

    def __init__(self, plan, folder):
        self.logs = [folder / f"host{i}.log" for i in range(2)]
        root = Path(__file__).parents[3]
        paths = [str(root / "src"), os.environ.get("PYTHONPATH", "")]
        words = ["serve", str(plan), "--port", "0", "--cpu-devices", "2", "--processes", "2"]
        words += ["--coordinator", f"127.0.0.1:{free_ports()}"]
        self.processes = []
        for i, log in enumerate(self.logs):
            with log.open("w") as file:
                made = subprocess.Popen(
                    [sys.executable, "-m", "shardwise", *words, "--process", str(i)],
                    env=QUICK | {"PYTHONPATH": os.pathsep.join(paths)},
                    stdout=file,
                    stderr=file,
                )
            self.processes.append(made)

    def url(self):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            found = re.search(r"is served at (\S+)", self.logs[0].read_text())
            if found:
                return found[1]
            assert all(p.poll() is None for p in self.processes), self.said()
            time.sleep(0.2)
        raise AssertionError(self.said())

    def said(self):
        return "\n".join(log.read_text() for log in self.logs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def plan(checkpoint, tmp_path_factory):
    return plan_of(checkpoint, tmp_path_factory.mktemp("plan") / "plan.yaml")


@pytest.mark.slow
def test_two_hosts_answer_as_one_and_end_together(plan, tmp_path, checkpoint):
    prompt = [5, 17, 99, 4, 31, 8]
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 1}
    engine = open_engine(checkpoint, EngineSettings(batch=2))
    (alone,) = engine.add(prompt, Sampling(temperature=0, max_tokens=6))
    while not engine.idle:
        engine.step()
    text = read_model_text(checkpoint)
    with TwoHosts(plan, tmp_path) as hosts:
        asked = Request(f"{hosts.url()}/v1/completions", json.dumps(body).encode(), HEADERS)
        with urlopen(asked, timeout=120) as answer:
            found = json.load(answer)
        names = found["choices"][0]["logprobs"]["tokens"]
        assert names == [text.token_text(token) for token in alone.tokens]
        hosts.processes[0].send_signal(signal.SIGTERM)
        assert [p.wait(LONGEST) for p in hosts.processes] == [0, 0], hosts.said()


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
def test_a_host_that_is_killed_ends_the_other_which_says_so(plan, tmp_path, dead):
    with TwoHosts(plan, tmp_path) as hosts:
        hosts.url()
        hosts.processes[dead].kill()
        other = hosts.processes[1 - dead]
        assert other.wait(LONGEST) == 1, hosts.said()
        assert f"host {dead} of 2 (127.0.0.1) has died" in hosts.logs[1 - dead].read_text()
