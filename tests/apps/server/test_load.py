"""Load and faults: disconnects, nonsense, slow readers, a signal in the middle; nothing leaks."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from urllib.request import urlopen

import pytest
from tests.apps.server.client import ask, check, load, unchunked
from tests.apps.server.made import folder_of, nothing_is_held, replica_of

from shardwise.apps.server.run import running
from shardwise.apps.server.state import ServerLimits


def resident(process):
    """Megabytes of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def check_all(found, requests):
    assert len(found) == requests
    for body, how, status, answer in found:
        if "leave_after" not in how:
            check(body, status, answer)


def test_a_load_with_faults_leaves_nothing_behind(tmp_path):
    replica = replica_of(folder_of(tmp_path), pages=256, ends=True)
    with running(replica, ServerLimits(queue=1000)) as (state, url):
        found = asyncio.run(load(int(url.rpartition(":")[2]), Random(2), 300))
        nothing_is_held(state)
    check_all(found, 300)


@pytest.mark.slow
def test_ten_thousand_requests_leave_nothing_behind(tmp_path):
    child = started(folder_of(tmp_path))
    assert child.stdout is not None
    port = int(child.stdout.readline().rpartition(":")[2])
    try:
        check_all(asyncio.run(load(port, Random(1), 2000)), 2000)
        before = resident(child.pid)
        check_all(asyncio.run(load(port, Random(2), 10_000)), 10_000)
        grown = resident(child.pid) - before
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert out.split() == ["held", "0", "0"]
    print(f"grown by {grown:.1f} MB")
    assert grown < 10, f"{grown:.1f} MB for 10,000 requests"


def test_who_leaves_frees_pages_at_once(tmp_path):
    replica = replica_of(folder_of(tmp_path), wait=lambda _: time.sleep(0.005))
    with running(replica) as (state, url):
        port = int(url.rpartition(":")[2])
        for stream in (False, True):
            body = {"prompt": [5] * 100, "max_tokens": 900, "stream": stream}
            begun = time.monotonic()
            asyncio.run(ask(port, "/v1/completions", body, leave_after=0.1))
            while state.replica.engine.outstanding or state.waiting:
                assert time.monotonic() < begun + 1.5
                time.sleep(0.005)
            nothing_is_held(state)


SERVER = """
import sys, time
from pathlib import Path
from tests.apps.server.made import replica_of
from shardwise.apps.server.run import bound, run_server
from shardwise.apps.server.run import running
from shardwise.apps.server.state import ServerLimits

sock = bound("127.0.0.1", 0)
replica = replica_of(Path(sys.argv[1]), wait=lambda _: time.sleep(0.001))
limits = ServerLimits(drain=float(sys.argv[2]))
code = run_server(replica, sock, limits=limits, ready=lambda url: print(url, flush=True))
(pool,) = replica.engine.pools
scheduler = pool.scheduler
scheduler.check()
held = scheduler.config.pages - scheduler.pool.free - scheduler.tree.device
print("held", held, scheduler.outstanding, flush=True)
sys.exit(code)
"""


def started(folder, drain=60):
    root = Path(__file__).parents[3]
    paths = [str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder), str(drain)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def ended_by(folder, requests, number, at):
    """A load with a signal after `at` requests: the answers, what the server printed, its log."""
    child = started(folder)
    assert child.stdout is not None
    url = child.stdout.readline().strip()

    def begun(count):
        if count == at:
            child.send_signal(number)

    try:
        found = asyncio.run(load(int(url.rpartition(":")[2]), Random(3), requests, begun=begun))
        out, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    log = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    return found, out, log, child.returncode


def through_the_end(folder, requests):
    found, out, log, code = ended_by(folder, requests, signal.SIGTERM, requests // 2)
    assert (code, out.split()) == (0, ["held", "0", "0"])
    finished = refused = gone = 0
    for body, how, status, answer in found:
        if "leave_after" in how:
            continue
        if status == 503:
            refused += 1
            assert b"takes no new requests" in answer
        elif status == -1:  # nobody listens any more
            assert answer == b""
            gone += 1
        else:
            check(body, status, answer)
            finished += 1
    # Those that had ended before the signal at the least: half, less 64 in flight and a fifth of
    # the rest, who left early.
    assert finished > (requests // 2 - 64) * 7 // 10
    assert refused > 10
    events = [line["event"] for line in log]
    assert [e for e in events if e not in ("request", "steps")] == [
        *("serving", "signal", "draining", "ends")
    ]
    assert (log[-1]["unfinished"], log[-1]["pages_used"]) == (0, 0)
    served = [line for line in log if line["event"] == "request" and line["status"] == 200]
    assert all(line["request_id"] and line["prompt_tokens"] for line in served)
    answered = finished + refused + gone
    assert answered == sum("leave_after" not in how for _, how, *_ in found)


def test_a_signal_lets_what_was_accepted_finish(tmp_path):
    through_the_end(folder_of(tmp_path), 300)


@pytest.mark.long
def test_a_signal_in_the_middle_of_ten_thousand(tmp_path):
    through_the_end(folder_of(tmp_path), 10_000)


@pytest.mark.slow
def test_who_is_connected_and_asks_late_is_told(tmp_path):
    child = started(folder_of(tmp_path))
    assert child.stdout is not None
    port = int(child.stdout.readline().rpartition(":")[2])

    async def go():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        child.send_signal(signal.SIGTERM)
        while (await ask(port, "/v1/completions", {"prompt": "a"}))[0] != -1:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    try:
        answer = asyncio.run(go())
        child.communicate(timeout=20)
    finally:
        child.kill()
    assert answer.startswith(b"HTTP/1.1 ")
    assert child.returncode == 0


@pytest.mark.slow
def test_a_second_signal_does_not_wait(tmp_path):
    child = started(folder_of(tmp_path))
    assert child.stdout is not None
    port = int(child.stdout.readline().rpartition(":")[2])

    async def go():
        body = {"prompt": [5] * 100, "max_tokens": 900, "n": 30}
        stream = {**body, "stream": True}
        asked = [
            asyncio.create_task(ask(port, "/v1/completions", body)),
            asyncio.create_task(ask(port, "/v1/completions", stream)),
            asyncio.create_task(ask(port, "/v1/completions", stream, slow=3)),
        ]
        await asyncio.sleep(0.5)
        child.send_signal(signal.SIGINT)
        await asyncio.sleep(1.2)
        child.send_signal(signal.SIGINT)
        begun = time.monotonic()
        await asyncio.to_thread(child.communicate, timeout=20)
        return time.monotonic() - begun, [await task for task in asked[:2]]

    try:
        seconds, ((status, whole), (begun, parts)) = asyncio.run(go())
    finally:
        child.kill()
    assert seconds < 5
    assert (status, begun) == (503, 200)
    assert b"was stopped before this answer was complete" in whole
    *_, error, end = unchunked(parts).split(b"\n\n")[:-1]
    assert json.loads(error[6:])["error"]["code"] == 503
    assert end == b"data: [DONE]"
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert not [line for line in log if "traceback" in line or line["level"] == "error"]
    assert child.returncode == 0


@pytest.mark.slow
def test_who_has_no_answer_when_the_time_is_over_is_told(tmp_path):
    child = started(folder_of(tmp_path), drain=0.7)
    assert child.stdout is not None
    port = int(child.stdout.readline().rpartition(":")[2])

    async def go():
        body = {"prompt": [5] * 100, "max_tokens": 900, "n": 30}
        bodies = body, {**body, "stream": True}
        asked = [asyncio.create_task(ask(port, "/v1/completions", one)) for one in bodies]
        await asyncio.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        await asyncio.sleep(0.2)
        seen = await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/debug/state", timeout=5)
        await asyncio.to_thread(child.communicate, timeout=20)
        return time.monotonic() - begun, json.load(seen), [await task for task in asked]

    try:
        seconds, seen, ((status, whole), (begun, parts)) = asyncio.run(go())
    finally:
        child.kill()
    assert seen["server"]["draining"]
    assert seen["server"]["answers"] == 60
    assert seconds < 4
    assert (status, begun) == (503, 200)
    assert b"before the answer ended" in whole
    *_, error, end = unchunked(parts).split(b"\n\n")[:-1]
    assert json.loads(error[6:])["error"]["code"] == 503
    assert end == b"data: [DONE]"
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert not [line for line in log if "traceback" in line or line["level"] == "error"]
    assert child.returncode == 0
