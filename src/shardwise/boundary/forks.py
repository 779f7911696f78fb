"""Jobs that may explode, each in a fork of a child that has loaded what they need.

What a client sends may take time and memory without end in a library that nothing can stop: a
template's loops, a grammar's automaton, a tokenizer's patterns. Such a job runs in a fork, which
takes a millisecond where a new process takes a second. The kernel ends the fork at its limits of
processor time (ITIMER_PROF) and memory (RLIMIT_DATA), and as soon as its caller closes the socket
between them (SIGIO): whatever code it is in, and without anybody's help.

Most jobs take milliseconds, and are not to wait for those that explode. So a job gets little time
first (`quick`), in one of a few forks that are kept; what is not done by then begins again in a
fork with the least priority, one after the other, with all the time that it may have (`most`).
Where cores are scarce, first tries too give way to the process that answers (`NICE`).
"""

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from shardwise.boundary.child import Child, function_named, python, start
from shardwise.errors import BadRequest, MissingPart, ShardwiseError
from shardwise.units import format_bytes

Handle = Callable[[bytes], bytes]
"""A job's answer. Raises ShardwiseError, which its caller gets."""

QUICK_AT_ONCE = 2
NICE = 10
"""Of first tries: a process of usual priority outweighs one of them nine to one. On one core beside
1,000 hostile clients, first tokens of others came 1.19 and 1.31 times as late as without them, and
2.42 and 4.34 times at nice 0 (`benchmarks/faults.py --hostile 1000`, in turn, 2026-11)."""
REUSED = 500
"""Jobs of a fork before another takes its place."""
GREW = 64 * 2**20
"""Bytes that a fork may have grown by and still be used again."""
LOAD_SECONDS = 120.0
PATIENCE = 20.0
"""Seconds that a job waits for its turn among the slow ones."""
STARVED = 300.0
"""Seconds by the clock that a job of the least priority may take: it gets no processor's time while
others take all of it."""

_JOB = struct.Struct("<QQdb")  # bytes of the job, memory, seconds, whether least priority
_ANSWER = struct.Struct("<cQ?")  # kind, bytes, whether the fork takes another job
_ERRORS: dict[bytes, type[ShardwiseError]] = {b"b": BadRequest, b"m": MissingPart}


class BusyError(ShardwiseError):
    """A job did not get its turn, as others took too long."""


class JobLimit(NamedTuple):
    """What a job may take: seconds of a processor in the first try and in all, bytes beyond what
    the child has loaded. Jobs of one `lane` wait for each other's first tries, not for others'."""

    quick: float
    most: float
    memory: int
    lane: str = ""

    def __str__(self) -> str:
        return f"{self.most:.2g} s or {format_bytes(self.memory)}"


@dataclass(slots=True, kw_only=True)
class _Lanes:
    """Who may run, on one event loop."""

    quick: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    slow: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


@dataclass(slots=True)
class _Running:
    """A child that runs, the socket by which it is asked for forks, and those of forks that wait
    for a job."""

    child: Child | None = None
    control: socket.socket | None = None
    idle: list[socket.socket] = field(default_factory=list)

    def stop(self) -> None:
        while self.idle:
            self.idle.pop().close()
        if self.control is not None:
            self.control.close()
        if self.child is not None:
            self.child.stop()
        self.control = self.child = None


class ForkingChild:
    """A child in which `target` (module:function, called with `arguments`) loads and gives a
    `Handle`; `call` runs that in forks. The child is started by `start`, or by the first call."""

    def __init__(self, target: str, *arguments: str, memory_bytes: int) -> None:
        self._command = (target, *arguments)
        self._memory = memory_bytes
        self._lock = threading.Lock()
        self._held = _Running()
        weakref.finalize(self, self._held.stop)
        self.working = 0
        """Jobs that forks are at."""
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = (
            weakref.WeakKeyDictionary()
        )

    def start(self) -> None:
        """Begin to load; nothing waits for it."""
        with self._lock:
            self._started()

    def stop(self) -> None:
        """End the child and its forks. A later call starts another."""
        with self._lock:
            self._held.stop()

    async def call(self, job: bytes, limit: JobLimit, what: str, remedy: str) -> bytes:
        """The answer to a job; messages name `what` it does and a `remedy`. Raises what the job
        raises, BadRequest where it takes more than its limit, BusyError where others do. A job
        whose caller is cancelled ends."""
        lanes = self._lanes.setdefault(asyncio.get_running_loop(), _Lanes())
        async with lanes.quick.setdefault(limit.lane, asyncio.Semaphore(QUICK_AT_ONCE)):
            found = await self._answer(job, limit.quick, limit.memory)
        if found is None and limit.most > limit.quick:
            async with _turn(lanes.slow, what), _busy_after(STARVED, what):
                found = await self._answer(job, limit.most, limit.memory, least=True)
        if found is None:
            raise BadRequest(f"{what} takes more than {limit}; {remedy}")
        kind, answer = found
        if kind != b"a":
            raise _ERRORS[kind](answer.decode())
        return answer

    async def _answer(
        self, job: bytes, seconds: float, memory: int, *, least: bool = False
    ) -> tuple[bytes, bytes] | None:
        """The kind of an answer and its bytes; None where the fork ended before."""
        idle = self._held.idle
        end = idle.pop() if idle and not least else self._fork()
        goes_on = False
        self.working += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(end, _JOB.pack(len(job), memory, seconds, least) + job)
            kind, size, more = _ANSWER.unpack(await _received(end, _ANSWER.size))
            answer = await _received(end, size)
            goes_on = more
            return kind, answer
        except (OSError, EOFError):
            return None
        finally:
            self.working -= 1
            if goes_on:
                idle.append(end)
            else:
                end.close()  # which ends the fork

    def _fork(self) -> socket.socket:
        """Our end of a new fork's socket."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            for again in (True, False):
                control = self._started()
                try:
                    control.settimeout(LOAD_SECONDS)
                    socket.send_fds(control, [b"f"], [theirs.fileno()])
                    break
                except OSError:
                    self._held.stop()
                    if not again:
                        ours.close()
                        raise ShardwiseError("the child for text ends at once") from None
        ours.setblocking(False)
        return ours

    def _started(self) -> socket.socket:
        held = self._held
        if held.control is not None:
            return held.control
        ours, theirs = socket.socketpair()
        with theirs:
            handed = str(theirs.fileno())
            target = f"{__name__}:_stand"
            held.child = start(
                python(target, handed, *self._command, memory_bytes=self._memory),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        held.control = ours
        return ours


@asynccontextmanager
async def _turn(lane: asyncio.Semaphore, what: str) -> AsyncIterator[None]:
    """A turn in a lane, which comes within `PATIENCE`."""
    async with _busy_after(PATIENCE, what):
        await lane.acquire()
    try:
        yield
    finally:
        lane.release()


@asynccontextmanager
async def _busy_after(seconds: float, what: str) -> AsyncIterator[None]:
    """Raises BusyError where the body takes longer by the clock."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BusyError(f"{what} waits for other work; try again later") from None


async def _received(end: socket.socket, count: int) -> bytes:
    loop, parts, left = asyncio.get_running_loop(), [], count
    while left:
        part = await loop.sock_recv(end, min(left, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# Inside the child.


def _stand(handed: str, target: str, *arguments: str) -> None:
    """Load, then fork for whoever asks."""
    control = socket.socket(fileno=int(handed))
    handle: Handle = function_named(target)(*arguments)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks leave nothing to reap
    while True:
        _, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not handles:
            return
        with contextlib.suppress(OSError):  # its caller reads that there is no fork
            if os.fork() == 0:
                control.close()
                _run(socket.socket(fileno=handles[0]), handle)
        os.close(handles[0])


def do_if_it_ends(work: Callable[[], object], seconds: float, memory: int) -> None:
    """Do work that all jobs need, in a child alone: if it ends within its limits in a fork, then
    here, within the same memory."""
    if _tried(work, seconds, memory):
        with _memory(_data_bytes() + memory):
            work()


def _tried(work: Callable[[], object], seconds: float, memory: int) -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if os.fork() == 0:
            ours.close()
            code = 1
            try:
                with _limited(theirs, seconds, _data_bytes() + memory):
                    work()
                theirs.sendall(b"y")
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        return ours.recv(1) == b"y"


def _run(end: socket.socket, handle: Handle) -> None:
    """A fork's life."""
    for name in (signal.SIGIO, signal.SIGPROF):
        signal.signal(name, signal.SIG_DFL)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    os.nice(NICE)
    began = _data_bytes()
    code = 0
    try:
        for left in reversed(range(REUSED)):
            size, memory, seconds, least = _JOB.unpack(_all(end, _JOB.size))
            job = _all(end, size)
            if least:
                os.nice(19)
            with _limited(end, seconds, began + memory):
                kind, answer = _answered(handle, job)
            more = bool(left) and not least and _data_bytes() < began + GREW
            end.sendall(_ANSWER.pack(kind, len(answer), more) + answer)
            if not more:
                break
    except BaseException:
        code = 1
    os._exit(code)


@contextmanager
def _limited(end: socket.socket, seconds: float, memory: int) -> Iterator[None]:
    """Let the kernel end this process: at a limit, or once the other end of a socket closes."""
    flags = fcntl.fcntl(end, fcntl.F_GETFL)
    fcntl.fcntl(end, fcntl.F_SETFL, flags | os.O_ASYNC)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with _memory(memory):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        fcntl.fcntl(end, fcntl.F_SETFL, flags)


@contextmanager
def _memory(most: int) -> Iterator[None]:
    """At most so many bytes of data."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _answered(handle: Handle, job: bytes) -> tuple[bytes, bytes]:
    try:
        return b"a", handle(job)
    except MissingPart as error:
        return b"m", str(error).encode()
    except ShardwiseError as error:
        return b"b", str(error).encode("utf-8", "replace")


def _all(end: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = end.recv(min(left, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _data_bytes() -> int:
    """What RLIMIT_DATA counts of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
