"""Jobs in forks: answers, limits of time and memory, and an end with whoever asked."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from shardwise.boundary import forks
from shardwise.boundary.forks import BusyError, ForkingChild, JobLimit
from shardwise.errors import BadRequest

LIMIT = JobLimit(0.1, 0.5, 100 * 2**20)


def stand(*_):
    """Loaded by the child: a job is Python."""

    def handle(job):
        return repr(eval(job.decode())).encode()

    return handle


def refuse():
    raise BadRequest("told so")


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    # The child finds this file by its path: it has the package, and no tests.
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "jobs_of_test.py").write_text(Path(__file__).read_text())
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder)
    made = ForkingChild("jobs_of_test:stand", memory_bytes=2**30)
    made.start()
    yield made
    made.stop()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


def asked(child, job, limit=LIMIT):
    return asyncio.run(child.call(job.encode(), limit, "this job", "ask for less")).decode()


def test_a_job_is_answered_and_its_refusal_is_ours(child):
    assert asked(child, "1 + 1") == "2"
    with pytest.raises(BadRequest, match="told so"):
        asked(child, "refuse()")


@pytest.mark.parametrize(
    "job", ["[None for _ in iter(int, 1)]", "bytearray(2**28)", "'a' * 10**10", "10**10**7"]
)
def test_what_has_no_end_is_ended(child, job):
    with pytest.raises(BadRequest, match=r"this job takes more than 0\.5 s or .*; ask for less"):
        asked(child, job)
    assert asked(child, "2 + 2") == "4"


@pytest.mark.slow
def test_a_job_gives_way_to_the_process_that_asks(child):
    """The second try, of a job that was not done in the first one's time, more so."""
    assert int(asked(child, "os.nice(0)")) == min(os.nice(0) + forks.NICE, 19)
    slow = "sum(range(200_000_000)) * 0 + os.nice(0)"
    assert int(asked(child, slow, JobLimit(0.01, 60, 100 * 2**20))) == 19


def test_what_dies_is_no_answer(child):
    with pytest.raises(BadRequest, match="takes more than"):
        asked(child, "os._exit(1)")


def test_what_is_quick_does_not_wait_for_what_takes_long(child):
    endless = b"[0 for _ in iter(int, 1)]"
    long = JobLimit(0.05, 20.0, 100 * 2**20)

    async def go():
        hostile = [asyncio.create_task(child.call(endless, long, "it", "stop")) for _ in range(20)]
        await asyncio.sleep(1.5)
        begun = time.monotonic()
        for _ in range(20):
            await child.call(b"1", LIMIT, "it", "stop")
        seconds = time.monotonic() - begun
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        return seconds

    assert asyncio.run(go()) < 10  # alone 20 ms; each of the 20 would take 20 s


def test_a_job_that_gets_no_processor_ends_by_the_clock(child, monkeypatch, tmp_path):
    """With the least priority it would wait for as long as others take all processors; here its
    second try sleeps, which takes no processor's time either."""
    monkeypatch.setattr(forks, "STARVED", 0.5)
    tried = f"Path({str(tmp_path / 'tried')!r})"
    starved = f"time.sleep(60) if {tried}.exists() else [{tried}.touch(), *iter(int, 1)]"
    begun = time.monotonic()
    with pytest.raises(BusyError, match="this job waits for other work; try again"):
        asked(child, starved)
    assert time.monotonic() - begun < 20
    assert asked(child, "3") == "3"


def test_a_job_ends_with_whoever_asked(child):
    """Nobody waits for it any more, so nothing of it runs on."""

    async def go():
        mark = b"[0 for _ in iter(int, 1)]"
        task = asyncio.create_task(child.call(mark, JobLimit(50, 50, 2**27), "it", "stop"))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        end = time.monotonic() + 10
        while busy() and time.monotonic() < end:
            await asyncio.sleep(0.05)
        return busy()

    def busy():
        """Forks that use a processor."""
        group = child._held.child.process.pid
        stats = [p / "stat" for p in Path("/proc").iterdir() if p.name.isdigit()]
        found = [text.rpartition(")")[2].split() for p in stats if (text := _text(p))]
        return sum(f[0] == "R" for f in found if int(f[2]) == group)

    assert asyncio.run(go()) == 0


def _text(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def test_a_child_that_died_is_started_again(child):
    assert asked(child, "1") == "1"
    os.killpg(child._held.child.process.pid, 9)
    time.sleep(0.2)
    assert asked(child, "3 + 3") == "6"
