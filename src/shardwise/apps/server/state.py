"""What a running server holds, and what it allows."""

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass, field

from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.metrics import ServerMetrics
from shardwise.apps.server.trace import StepTrace
from shardwise.apps.web.connection import ConnectionLimits
from shardwise.apps.web.hosts import HostRule
from shardwise.apps.web.pace import RefusalPace
from shardwise.commands.run.serving import EngineThread, ServedModel

AT_ONCE = 4
"""Answers that report as much as an answer may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What clients may ask for. `queue` answers at most wait or run; the body of a request has at
    most `body` bytes, all that are on their way `bodies`, and comes within `upload` seconds; an
    answer is cut after `seconds`, and reports at most `reported` tokens and logprobs of prompts."""

    queue: int = 512
    body: int = 8 * 2**20
    bodies: int = 256 * 2**20
    upload: float = 30.0
    reported: int = 2**19
    seconds: float = 3600.0
    drain: float = 600.0
    """Seconds that accepted requests have once the server is asked to end."""
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(slots=True, kw_only=True)
class ServerState:
    """One server: its replica, whose `thread` runs, and what is going on."""

    replica: ServedModel
    thread: EngineThread
    limits: ServerLimits = ServerLimits()
    api_keys: tuple[str, ...] = ()
    hosts: HostRule = field(default_factory=HostRule)
    pace: RefusalPace = field(default_factory=RefusalPace)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of whose large body is read."""
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of whose vectors are made."""
    held: int = 0
    """Bytes of bodies that are on their way."""
    reported: int = 0
    """Tokens of prompts, with their logprobs, that answers which wait or run report."""
    metrics: ServerMetrics = field(init=False)
    trace: StepTrace = field(init=False)
    draining: bool = False
    active: int = 0
    """Requests of HTTP that have no whole answer yet."""
    waiting: int = 0
    """Answers that wait or run."""
    started: float = field(default_factory=time.time)
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    """When the last answers ended."""

    def __post_init__(self) -> None:
        self.trace = StepTrace(self.replica.predict)
        self.metrics = ServerMetrics(self.replica.name, self.replica.engine, self.trace.predicted)
        self.replica.engine.observers += [self.metrics.stepped, self.trace.stepped]

    @property
    def vocabulary(self) -> int:
        """Tokens that both tokenizer and model have."""
        return min(self.replica.text.vocabulary, self.replica.engine.vocabulary)

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return not self.draining and self.thread.failure is None

    def take(self, answers: int, reported: int = 0) -> None:
        """Room for so many answers, which report so many tokens of their prompts. Raises ApiError,
        429 where others have it."""
        limits = self.limits
        if reported > limits.reported:
            raise bad(
                "echo",
                f"echo: {reported:,} tokens with their logprobs; an answer gives at most "
                f"{limits.reported:,} of its prompts, so ask for fewer prompts or logprobs at once",
            )
        if self.reported + reported > limits.reported * AT_ONCE:
            raise ApiError(
                429, "the server reports on other prompts; try again", headers={"Retry-After": "10"}
            )
        if answers > self.limits.queue:
            raise bad("n", f"{answers} answers at once; this server holds {self.limits.queue}")
        if self.waiting + answers > self.limits.queue:
            raise ApiError(
                429,
                f"{self.waiting} answers wait or run already, and the limit is "
                f"{self.limits.queue}; try again later",
                headers={"Retry-After": str(self.retry_after())},
            )
        self.waiting += answers
        self.reported += reported

    def gave(self, answers: int, reported: int = 0) -> None:
        """So many answers have ended."""
        self.waiting -= answers
        self.reported -= reported
        self.ends.extend([time.monotonic()] * answers)

    def retry_after(self) -> int:
        """Seconds in which about a tenth of the queue should have emptied."""
        if len(self.ends) < 2:
            return 1
        pace = len(self.ends) / max(time.monotonic() - self.ends[0], 0.01)
        return min(max(math.ceil(self.limits.queue / 10 / pace), 1), 60)

    async def drained(self, end: float) -> bool:
        """Wait until every request has its answer, at most until `end` of the monotonic clock;
        whether they have."""
        while self.active and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return not self.active
