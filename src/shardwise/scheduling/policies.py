"""Batching policies: pure functions from a scheduler's state to the next step's batch.

- `static`: a batch is prefilled together, padded to its longest prompt, and decoded until the last
  of it has ended; nothing joins meanwhile (the first picture of ch. 7.4).
- `interleaved`: one prompt at a time, in chunks, as soon as it fits; decoding pauses meanwhile.
- `chunked`: every step decodes all sequences and fills its token budget with chunks of prompts
  (Sarathi-Serve, arXiv 2403.02310).
- `prefill`: chunks of prompts only, as many as fit the budget; the caches go to other replicas
  (disaggregated serving, ch. 7.4). Replicas that decode for them run one of the others.

All admit in the order of the queue and stop at the first request that does not fit: so none is
overtaken by smaller ones for ever. A policy reads a `View`, changes nothing, and returns a
`Decision`; the scheduler carries it out.
"""

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from shardwise.scheduling.requests import Sequence as Job

Policy = Literal["static", "interleaved", "chunked", "prefill"]
Admission = Literal["optimistic", "reserve", "forecast"]


class Want(NamedTuple):
    """What a request needs to start. Pages: `fresh` ones, `unlocked` ones of the prefix cache that
    it would lock (they stop being evictable), `shared` ones of it in all, `full` at full length.
    `cached` is how many of its tokens need not be computed."""

    fresh: int
    unlocked: int
    shared: int
    full: int
    cached: int


class View(Protocol):
    """What a policy may look at."""

    @property
    def decoding(self) -> Sized:
        """Sequences that decode."""
        ...

    @property
    def prefilling(self) -> Sequence[Job]:
        """Sequences whose prompts are partly cached, oldest first."""
        ...

    @property
    def budget(self) -> int:
        """Tokens of a step, or of a chunk."""
        ...

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a decoding sequence puts into a step."""
        ...

    @property
    def grain(self) -> int:
        """Tokens at whose multiples a chunk should end, so that what is kept there may be found."""
        ...

    def waiting(self) -> Iterator[Job]:
        """Requests to admit, in order."""
        ...

    def parked(self) -> Iterator[Job]:
        """Sequences whose whole cache is on the host or on another replica, in order."""
        ...

    def want(self, job: Job) -> Want:
        """What a waiting or parked sequence needs."""
        ...

    def room(self) -> "Room":
        """Slots and pages left, to fill in mind."""
        ...


@dataclass(slots=True, kw_only=True)
class Room:
    """Slots and pages that are left, while a policy fills them in mind.

    `spare` pages are free or evictable, less those of the next decoding step. `margin` of them stay
    free as long as something runs (`busy`). `owed` are the pages that running sequences may still
    ask for, where those are reserved; `head` those that the forecast peak leaves; else None.
    """

    slots: int
    spare: int
    margin: int
    busy: bool
    owed: int | None = None
    head: int | None = None

    def take(self, want: Want) -> bool:
        """Whether it fits; if so, it is in."""
        now = want.fresh + want.unlocked
        if self.slots < 1 or now + (self.margin if self.busy else 0) > self.spare:
            return False
        if self.owed is not None:
            later = want.full - want.shared
            if self.owed + later + want.unlocked > self.spare:
                return False
            self.owed += later - want.fresh
        if self.head is not None:
            if want.full > self.head:
                return False
            self.head -= want.full
        self.slots -= 1
        self.spare -= now
        self.busy = True
        return True


class Decision(NamedTuple):
    """Who starts (`admits` waiting, `joins` parked), which chunks run, whether all decode, and
    whether the chunks are padded to the longest."""

    admits: Sequence[Job] = ()
    joins: Sequence[Job] = ()
    chunks: Sequence[tuple[Job, int]] = ()
    decode: bool = False
    padded: bool = False


def static(view: View) -> Decision:
    """A new batch when the last one is through, its prompts whole."""
    if len(view.decoding):
        return Decision(decode=True)
    admits, chunks = _admit(view, view.room(), None, None)
    return Decision(admits=admits, chunks=chunks, padded=True)


def interleaved(view: View) -> Decision:
    """The next chunk of one prompt, else a decoding step."""
    if view.prefilling:
        job = view.prefilling[0]
        return Decision(chunks=[(job, _cut(view, job, job.cached, view.budget))])
    room = view.room()
    joins, next_join = _join(view, room)
    if not joins:
        admits, chunks = _admit(view, room, next_join, view.budget, most=1)
        if admits:
            return Decision(admits=admits, chunks=chunks)
    return Decision(joins=joins, decode=len(view.decoding) + len(joins) > 0)


def chunked(view: View) -> Decision:
    """All decode; chunks of prompts fill the rest of the budget."""
    room = view.room()
    joins, next_join = _join(view, room)
    budget = view.budget - (len(view.decoding) + len(joins)) * view.tokens_per_decode
    chunks, budget = _go_on(view, budget)
    admits, more = _admit(view, room, next_join, budget)
    decode = len(view.decoding) + len(joins) > 0
    return Decision(admits=admits, joins=joins, chunks=[*chunks, *more], decode=decode)


def prefill(view: View) -> Decision:
    """Chunks of prompts within the budget, and nothing else."""
    chunks, budget = _go_on(view, view.budget)
    admits, more = _admit(view, view.room(), None, budget)
    return Decision(admits=admits, chunks=[*chunks, *more])


POLICIES: dict[Policy, Callable[[View], Decision]] = {
    "static": static,
    "interleaved": interleaved,
    "chunked": chunked,
    "prefill": prefill,
}


def _join(view: View, room: Room) -> tuple[list[Job], Job | None]:
    """Parked sequences that fit, up to one that a waiting request comes before; and the next."""
    joins: list[Job] = []
    rival = next(view.waiting(), None)
    for job in view.parked():
        if (rival is not None and rival.order < job.order) or not room.take(view.want(job)):
            return joins, job
        joins.append(job)
    return joins, None


def _go_on(view: View, budget: int) -> tuple[list[tuple[Job, int]], int]:
    """The next chunks of prompts in progress, and what they leave of the budget."""
    chunks: list[tuple[Job, int]] = []
    for job in view.prefilling:
        if budget < 1:
            break
        tokens = _cut(view, job, job.cached, budget)
        chunks.append((job, tokens))
        budget -= tokens
    return chunks, budget


def _admit(
    view: View, room: Room, rival: Job | None, budget: int | None, most: int | None = None
) -> tuple[list[Job], list[tuple[Job, int]]]:
    """Waiting requests that fit, in order, with their first chunks; None is no budget. None is
    admitted past `rival`, a parked sequence that did not fit."""
    admits: list[Job] = []
    chunks: list[tuple[Job, int]] = []
    for job in view.waiting():
        if (budget is not None and budget < 1) or len(admits) == most:
            break
        if rival is not None and rival.order < job.order:
            break
        want = view.want(job)
        if not room.take(want):
            break
        tokens = job.target - want.cached
        if budget is not None:
            tokens = _cut(view, job, want.cached, budget)
            budget -= tokens
        admits.append(job)
        chunks.append((job, tokens))
    return admits, chunks


def _cut(view: View, job: Job, start: int, budget: int) -> int:
    """Tokens of the next chunk of a prompt: to the last multiple of the grain that it reaches, else
    all that is left, as where none of it can be cached."""
    tokens, grain = min(budget, job.target - start), view.grain
    if grain == 1 or not job.keys:
        return tokens
    last = (start + tokens) // grain * grain
    return last - start if last > start else tokens
