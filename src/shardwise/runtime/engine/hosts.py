"""One engine on several hosts: host 0 schedules, the others run the same steps in the same order.

Every host is a JAX process with devices of its own, all of one mesh. Requests, scheduler and slots
are host 0's. Before it gives a step to its devices it sends the others what the program gets, some
kilobytes of arrays, and they give the same program to theirs. Over the same sockets all tell each
other every few seconds that they are there: whoever hears nothing for `HEARTBEAT_SECONDS`, or finds
a socket closed, says which host has died and ends, since no step can be computed without it.
"""

import io
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from shardwise.errors import BadRequest
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.engine.model_step import StepInputs, StepOutputs
from shardwise.runtime.engine.row_settings import RowSettings
from shardwise.runtime.engine.sampling import Choices
from shardwise.runtime.processes import HEARTBEAT_SECONDS, ProcessGroup, connect

EVERY = 5.0
"""Seconds between two signs of life."""
MEETING = 120.0
"""Seconds in which the hosts have to meet."""
DIED = 1
"""The exit code of a host that ends because another one has."""


class HostMessage(NamedTuple):
    """What one host tells another: a kind, plain words, and arrays by name."""

    kind: str
    words: Mapping[str, Any] = {}
    arrays: Mapping[str, np.ndarray] = {}


class HostLink:
    """A socket to another host, which is watched."""

    def __init__(self, name: str, open_socket: socket.socket) -> None:
        self.name = name
        self._socket = open_socket
        self._socket.settimeout(HEARTBEAT_SECONDS)
        self._lock = Lock()
        self.over = False
        """Whether the other may go."""

    def send(self, message: HostMessage) -> None:
        """Send, or end with this host where the other one is gone."""
        try:
            with self._lock:
                self._socket.sendall(_packed(message))
        except OSError as error:
            self._gone(error)

    def receive(self) -> HostMessage:
        """The next message, or the end."""
        try:
            (size,) = struct.unpack("!Q", self._exactly(8))
            return _unpacked(self._exactly(size))
        except OSError as error:
            self._gone(error)
            raise

    def _gone(self, error: OSError) -> None:
        if self.over:
            sys.exit()  # ends this thread
        end_without(self.name, error)

    def beat(self) -> None:
        """Signs of life for as long as this process lives."""
        Thread(target=self._beat, name=f"beat to {self.name}", daemon=True).start()

    def _beat(self) -> None:
        while True:
            time.sleep(EVERY)
            self.send(HostMessage("here"))

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionError("its connection was closed")
            found += part
        return bytes(found)


def end_without(name: str, why: BaseException) -> None:
    """Say who has died, and end this process at once: its devices may wait for ever."""
    said = "it said nothing" if isinstance(why, TimeoutError) else str(why)
    sys.stderr.write(f"error: {name} has died ({said}); no step runs without it; stopping\n")
    sys.stderr.flush()
    os._exit(DIED)


class LeadingHost:
    """Host 0, which the others follow."""

    def __init__(self, group: ProcessGroup) -> None:
        count, (host, port) = group.count or 1, meeting_place(group)
        listening = socket.create_server(("", port), family=socket.AF_INET)
        listening.settimeout(MEETING)
        self._links: list[HostLink] = []
        try:
            for _ in range(1, count):
                found, address = listening.accept()
                link = HostLink(f"the host at {address[0]}", found)
                index = link.receive().words["host"]
                link.name = f"host {index} of {count} ({address[0]})"
                self._links.append(link)
        except TimeoutError:
            raise BadRequest(
                f"{len(self._links) + 1} of {count} hosts met at {host}:{port} within "
                f"{MEETING:g} s; start the others with the same --coordinator"
            ) from None
        finally:
            listening.close()
        for link in self._links:
            link.beat()
            Thread(target=_listen, args=(link,), name=link.name, daemon=True).start()

    def tell(self, message: HostMessage) -> None:
        """Every other host hears it, in order."""
        for link in self._links:
            link.over = message.kind == "end"
            link.send(message)

    def close(self) -> None:
        """Let the others end."""
        self.tell(HostMessage("end"))


class FollowingHost:
    """One of the others."""

    def __init__(self, group: ProcessGroup) -> None:
        place = meeting_place(group)
        self._link = HostLink(f"host 0 of {group.count} ({place[0]})", _reached(place))
        self._link.send(HostMessage("hello", {"host": group.index}))
        self._link.beat()
        self._heard: SimpleQueue[HostMessage] = SimpleQueue()
        Thread(target=self._hear, name="host 0", daemon=True).start()

    def follow(self, executor: ModelExecutor) -> None:
        """Do what host 0 does until it ends."""
        while (message := self._heard.get()).kind != "end":
            repeat(executor, message)

    def _hear(self) -> None:
        while True:
            message = self._link.receive()
            self._link.over = message.kind == "end"
            if message.kind != "here":
                self._heard.put(message)
            if self._link.over:
                return


class LeadingExecutor(ModelExecutor):
    """An executor whose steps the other hosts run, too."""

    tell: Callable[[HostMessage], None]

    def launch(self, inputs: StepInputs, choices: Choices, steps: int) -> StepOutputs:
        """Give the step to the devices of all hosts."""
        arrays = {f"rows.{n}": x for n, x in inputs.rows._asdict().items() if x is not None}
        arrays |= {n: x for n, x in inputs._asdict().items() if n != "rows"}
        self.tell(HostMessage("step", {"choices": choices._asdict(), "steps": steps}, arrays))
        return super().launch(inputs, choices, steps)

    def duplicate(self, group: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy pages on the devices of all hosts."""
        words = {"group": group, "sources": [*map(int, sources)], "targets": [*map(int, targets)]}
        self.tell(HostMessage("copy", words))
        super().duplicate(group, sources, targets)


def repeat(executor: ModelExecutor, message: HostMessage) -> None:
    """Do on this host's devices what host 0 does on its own."""
    words = message.words
    if message.kind == "copy":
        executor.duplicate(words["group"], words["sources"], words["targets"])
        return
    arrays = message.arrays
    rows = RowSettings(**{name: arrays.get(f"rows.{name}") for name in RowSettings._fields})
    others = {name: arrays[name] for name in StepInputs._fields if name != "rows"}
    inputs = StepInputs(**others, rows=rows)
    executor.launch(inputs, Choices(**words["choices"]), words["steps"])


def joined(group: ProcessGroup) -> LeadingHost | FollowingHost:
    """Become one of the hosts; before JAX is first used."""
    meeting_place(group)
    connect(group)
    return FollowingHost(group) if group.index else LeadingHost(group)


def least_of_all(value: int) -> int:
    """The least of what the hosts say; each of them asks this at the same point."""
    if jax.process_count() == 1:
        return value
    return int(np.min(multihost_utils.process_allgather(np.array(value, np.int32))))


def meeting_place(group: ProcessGroup) -> tuple[str, int]:
    """Where hosts tell each other about steps: the port after JAX's own."""
    if group.coordinator is None or group.count is None or group.index is None:
        raise BadRequest(
            "several hosts need --coordinator HOST:PORT, --processes and --process on each"
        )
    host, _, port = group.coordinator.rpartition(":")
    return host, int(port) + 1


def _listen(link: HostLink) -> None:
    while True:
        link.receive()


def _reached(place: tuple[str, int]) -> socket.socket:
    """A connection to host 0, which may not listen yet."""
    end = time.monotonic() + MEETING
    while True:
        try:
            return socket.create_connection(place, timeout=EVERY)
        except OSError as error:
            if time.monotonic() > end:
                raise BadRequest(
                    f"host 0 was not reached at {place[0]}:{place[1]} within {MEETING:g} s: {error}"
                ) from None
            time.sleep(0.2)


def _packed(message: HostMessage) -> bytes:
    held, arrays = io.BytesIO(), message.arrays
    save: Any = np.savez  # the arrays' names are no options of it
    save(held, **arrays)
    words = json.dumps([message.kind, message.words]).encode()
    body = struct.pack("!Q", len(words)) + words + held.getvalue()
    return struct.pack("!Q", len(body)) + body


def _unpacked(body: bytes) -> HostMessage:
    (size,) = struct.unpack("!Q", body[:8])
    kind, words = json.loads(body[8 : 8 + size])
    with np.load(io.BytesIO(body[8 + size :]), allow_pickle=False) as found:
        return HostMessage(kind, words, dict(found))
