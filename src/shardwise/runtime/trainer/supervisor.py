"""A process that watches over workers, since JAX cannot be asked to survive a lost peer.

When one of several processes dies, the runtime of the others aborts them, uncatchably and with
pages of C++. So each worker is a child: it reports by lines of JSON on its stdout, its stderr goes
to a log, and what became of it is told by whoever started it. Supervisors on several machines tell
each other by small files in the folder that the run shares anyway; a file whose beat stands still
is that of a lost machine. Ctrl-C and SIGTERM are passed on, so that all save one and the same step.
This process never touches a device.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.boundary.child import Child, start
from shardwise.errors import BadRequest, MissingPart, ShardwiseError
from shardwise.runtime.trainer.stop import HEARD, Signals, Stop

BEAT = 0.5
SILENCE = 15.0
"""Seconds without a beat after which a machine counts as lost."""
GRACE = 10.0
"""Seconds that survivors get to end by themselves."""

Message = dict[str, Any]
Hear = Callable[[Message], None]
KINDS: Mapping[str, type[ShardwiseError]] = {
    kind.__name__: kind for kind in (ShardwiseError, BadRequest, MissingPart)
}
CONSEQUENCE = (
    "gloo",
    "distributed service",
    "coordination",
    "connection reset",
    "connection closed",
    "nccl",
)
"""Words of errors that follow from another process's end."""


@dataclass(kw_only=True)
class Worker:
    """A child, what it said last, and how it ended."""

    index: int
    started: Child
    log: Path
    step: int = 0
    result: Message | None = None
    error: Message | None = None
    halted: bool = False
    """It was asked to stop, and has saved."""
    over: bool = False
    """It has ended, and all that it said was taken."""
    stopped: bool = False
    reader: threading.Thread | None = None

    @property
    def child(self) -> subprocess.Popen[bytes]:
        return self.started.process

    @property
    def ended(self) -> bool:
        return self.child.poll() is not None

    @property
    def failed(self) -> bool:
        return self.over and not self.halted and (self.child.returncode != 0 or self.result is None)

    @property
    def was_signalled(self) -> bool:
        """Whether it ended by a signal that asks for an end."""
        return -(self.child.returncode or 0) in HEARD

    def end(self) -> str:
        """How it ended, in words."""
        code = self.child.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def rank(self) -> int:
        """How likely this end is the cause of the others', 0 first; ends that we made are last."""
        if self.stopped:
            return 3
        code, said = self.child.returncode or 0, str((self.error or {}).get("text", "")).lower()
        if code < 0 and -code != signal.SIGABRT:
            return 0
        if self.error is not None and not any(word in said for word in CONSEQUENCE):
            return 1
        return 2


@dataclass(kw_only=True)
class Watch:
    """Starts the workers `indices` of `count`, hears them, and ends with one answer."""

    command: Sequence[str]
    indices: Sequence[int]
    count: int
    folder: Path
    place: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, hear: Hear) -> Message:
        """The result of the first worker; `hear` gets the progress that it reports.

        Raises the error of a worker that gave one, else ShardwiseError naming the process that was
        lost, how, and where to go on; and Stop where a signal ended the run.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lines: queue.Queue[tuple[Worker, Message]] = queue.Queue()
        workers: list[Worker] = []
        peers = Peers(self.folder, [i for i in range(self.count) if i not in self.indices])

        def note(text: str) -> None:
            hear({"step": 0, "line": text})

        with Signals(note) as signals, signals.waiting():
            try:
                workers.extend(self._start(i, lines) for i in self.indices)
                return self._watch(workers, peers, lines, hear, signals)
            finally:
                for worker in workers:
                    _end(worker)
                state = "lost" if any(w.failed for w in workers) else "done"
                _tell(self.folder, workers, state)

    def _watch(
        self,
        workers: list[Worker],
        peers: "Peers",
        lines: "queue.Queue[tuple[Worker, Message]]",
        hear: Hear,
        signals: Signals,
    ) -> Message:
        """Until all have ended, one is lost, or a signal that was passed on has stopped them."""
        asked = False
        while not all(w.over for w in workers):
            self._hear(lines, workers[0], hear)
            self._drain(lines, workers, hear)
            peers.look()
            _tell(self.folder, workers, "running")
            failed = [w for w in workers if w.failed]
            if signals.came is not None and any(w.was_signalled for w in failed):
                raise Stop(signals.came)  # one that was told by others, before it could listen
            if failed or peers.lost() is not None:
                return self._fail(workers, peers, lines, hear)
            if signals.came is not None and not asked:
                asked = True
                _ask(workers, signals.came)
        if any(w.halted for w in workers):
            raise Stop(signals.came or signal.SIGTERM)
        return workers[0].result or {}

    def _start(self, index: int, lines: "queue.Queue[tuple[Worker, Message]]") -> Worker:
        log = self.folder / f"{index:05}.log"
        with log.open("wb") as err:
            started = start(
                [*self.command, str(index)],
                environment=self.environment,
                stdout=subprocess.PIPE,
                stderr=err,
            )
        worker = Worker(index=index, started=started, log=log)
        worker.reader = threading.Thread(target=_read, args=(worker, lines), daemon=True)
        worker.reader.start()
        return worker

    def _hear(
        self, lines: "queue.Queue[tuple[Worker, Message]]", first: Worker, hear: Hear
    ) -> None:
        """Take what was said within a beat."""
        until = time.monotonic() + BEAT
        while (left := until - time.monotonic()) > 0:
            try:
                worker, message = lines.get(timeout=left)
            except queue.Empty:
                return
            _take(worker, message, hear if worker is first else _ignore)

    def _drain(
        self, lines: "queue.Queue[tuple[Worker, Message]]", workers: list[Worker], hear: Hear
    ) -> None:
        """Take all that was said, and note who had ended before."""
        ended = [w for w in workers if w.ended]
        for worker in ended:
            if worker.reader is not None:
                worker.reader.join(timeout=5)
        while not lines.empty():
            worker, message = lines.get()
            _take(worker, message, hear if worker is workers[0] else _ignore)
        for worker in ended:
            worker.over = True

    def _fail(
        self,
        workers: list[Worker],
        peers: "Peers",
        lines: "queue.Queue[tuple[Worker, Message]]",
        hear: Hear,
    ) -> Message:
        """Find what came first; survivors get `GRACE` to end, and peers to say what they know."""
        until = time.monotonic() + GRACE
        first = [w for w in workers if w.failed]
        self._drain(lines, workers, hear)
        certain = any(w.rank() < 2 for w in first)
        if certain:
            _tell(self.folder, workers, "lost")
        while time.monotonic() < until and not certain and peers.lost() is None:
            if peers.indices:
                _tell(self.folder, workers, "running")
                peers.look()
                until = max(until, peers.patience())
            elif all(w.ended for w in workers):
                break
            time.sleep(BEAT)
            self._drain(lines, workers, hear)
            certain = any(w.failed and w.rank() < 2 for w in workers)
        for worker in workers:
            _end(worker)
        self._drain(lines, workers, hear)
        raise self._verdict([w for w in workers if w in first or w.rank() < 2] or workers, peers)

    def _verdict(self, workers: list[Worker], peers: "Peers") -> ShardwiseError:
        lost = peers.lost()
        cause = min(workers, key=Worker.rank)
        if lost is not None and cause.rank() >= 2:
            return self._report(*lost)
        if cause.error is not None and cause.rank() == 1:
            kind = KINDS.get(cause.error["kind"], ShardwiseError)
            where = f"process {cause.index} of {self.count}: " if self.count > 1 else ""
            return kind(f"{where}{cause.error['text']}")
        detail = "" if cause.rank() == 0 else f" (its log: '{cause.log}')"
        return self._report(cause.index, f"{cause.end()}{detail}", cause.step, socket.gethostname())

    def _report(self, index: int, how: str, step: int, host: str) -> ShardwiseError:
        if step == 0 and "SIGABRT" in how:
            return ShardwiseError(
                f"process {index} of {self.count} on {host} {how} before the first step: it did "
                f"not reach the others at {self.place}; start all {self.count} processes, with an "
                "address that each can reach"
            )
        return ShardwiseError(
            f"process {index} of {self.count} on {host} {how} after step {step}; the others were "
            "stopped because they cannot continue without it. Saved checkpoints are kept: start "
            f"all {self.count} again with --resume"
        )


class Peers:
    """What the supervisors of the other processes tell, and whether they still do."""

    def __init__(self, folder: Path, indices: list[int]) -> None:
        self.indices = indices
        self._folder = folder
        self._seen: dict[int, tuple[Any, float]] = {}
        self._alive: set[int] = set()
        self._said: dict[int, Message] = {}

    def look(self) -> None:
        """Read what is there; a beat that moves is a sign of life."""
        for i in self.indices:
            with suppress(OSError, ValueError):
                said = json.loads((self._folder / f"{i:05}.json").read_text(encoding="utf-8"))
                if not isinstance(said, dict) or not said.keys() >= _TOLD:
                    continue  # nothing that a supervisor wrote
                old, _ = self._seen.get(i, (None, 0.0))
                if said["beat"] != old:
                    self._seen[i] = said["beat"], time.monotonic()
                    if old is not None:  # else it may be of an earlier run
                        self._alive.add(i)
                        self._said[i] = said

    def lost(self) -> tuple[int, str, int, str] | None:
        """(process, how, step, host) of one that is lost."""
        for i in sorted(self._alive):
            said = self._said[i]
            if said["state"] == "lost" and said["sure"]:
                return said["index"], said["how"], said["step"], said["host"]
        for i in sorted(self._alive):
            said, (_, at) = self._said[i], self._seen[i]
            if said["state"] == "running" and time.monotonic() - at > SILENCE:
                return i, f"sent no message for {SILENCE:.0f} s", said["step"], said["host"]
        return None

    def patience(self) -> float:
        """Until when a silent peer is waited for."""
        times = [self._seen[i][1] for i in self._alive if self._said[i]["state"] == "running"]
        return min(times, default=0.0) + SILENCE + 2 * BEAT


_TOLD = {"index", "host", "beat", "state", "sure", "how", "step"}
"""What a beat says."""


def _tell(folder: Path, workers: list[Worker], state: str) -> None:
    """The beat of each worker; a full disk must not stop the watch."""
    failed = [w for w in workers if w.failed]
    cause = min(failed, key=Worker.rank) if failed else None
    for worker in workers:
        about = worker if cause is None else cause
        said = {
            "index": about.index,
            "host": socket.gethostname(),
            "beat": f"{os.getpid()}.{time.monotonic_ns()}",
            "state": state,
            "sure": cause is not None and cause.rank() < 2,
            "how": "" if cause is None else _how(cause),
            "step": about.step,
        }
        file = folder / f"{worker.index:05}.json"
        with suppress(OSError):
            begun = file.with_suffix(".part")
            begun.write_text(json.dumps(said), encoding="utf-8")
            begun.rename(file)


def _how(worker: Worker) -> str:
    return f"failed ({worker.error['text']})" if worker.error is not None else worker.end()


def _read(worker: Worker, lines: "queue.Queue[tuple[Worker, Message]]") -> None:
    assert worker.child.stdout is not None
    for line in worker.child.stdout:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                lines.put((worker, message))


def _take(worker: Worker, message: Message, hear: Hear) -> None:
    worker.result = message.get("result", worker.result)
    worker.error = message.get("error", worker.error)
    worker.halted = message.get("halted", worker.halted)
    if "progress" in message:
        worker.step = max(worker.step, message["progress"]["step"])  # a note has step 0
        hear(message["progress"])


def _ignore(_: Message) -> None:
    """What other processes than the first report is the same."""


def _ask(workers: list[Worker], number: int) -> None:
    """Pass a signal on, as the one that JAX agrees by; raises Stop where there is nothing to save
    yet."""
    if not any(w.step for w in workers):
        raise Stop(number)
    for worker in workers:
        if not worker.ended:
            worker.child.send_signal(signal.SIGTERM)


def _end(worker: Worker) -> None:
    worker.stopped = worker.stopped or not worker.ended
    worker.started.stop()
    if worker.reader is not None and worker.child.stdout is not None:
        worker.reader.join(timeout=5)
        worker.child.stdout.close()


def say(message: Message) -> None:
    """One line to the supervisor; for workers."""
    os.write(1, (json.dumps(message) + "\n").encode())


def error_message(error: BaseException) -> Message:
    """An error as a message: our own in full, others by name and first line."""
    if isinstance(error, ShardwiseError):
        kind = type(error).__name__
        return {"error": {"kind": kind if kind in KINDS else "ShardwiseError", "text": str(error)}}
    first = (str(error).splitlines() or [""])[0]
    return {"error": {"kind": "ShardwiseError", "text": f"{type(error).__name__}: {first}"}}
