"""Requests that do not run: new ones, those that wait with a cache, and forks of a prompt that is
still computed. Where each of them is, and how many prompt tokens they and the running still need.

A queue in the order of keys that can be looked through without being changed.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from shardwise.scheduling.requests import Sequence, Time


class OrderedQueue:
    """Sequences by their order, smallest first: O(log n) to add or take, O(k log k) to read the
    first k."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[tuple, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, job: Sequence) -> None:
        heappush(self._heap, (job.order, job))

    def pop(self) -> Sequence:
        """Take the first."""
        return heappop(self._heap)[1]

    def remove(self, gone: set[Sequence]) -> None:
        """Take some from anywhere, in O(n log n)."""
        self._heap = sorted(entry for entry in self._heap if entry[1] not in gone)

    def __iter__(self) -> Iterator[Sequence]:
        """In order. The heap is walked from its top, so that the first ones cost little."""
        heap = self._heap
        if not heap:
            return
        yield heap[0][1]
        front = [(heap[i], i) for i in (1, 2) if i < len(heap)]
        front.sort()
        while front:
            (_, job), at = heappop(front)
            yield job
            for i in (2 * at + 1, 2 * at + 2):
                if i < len(heap):
                    heappush(front, (heap[i], i))


class Backlog:
    """`waiting` compute their prompt (again), `parked` have their whole cache somewhere else,
    `unborn` forks (with whose they are) wait for a prompt that another computes."""

    def __init__(self) -> None:
        self.waiting = OrderedQueue()
        self.parked = OrderedQueue()
        self.unborn: dict[Sequence, Sequence] = {}
        self.tokens = 0
        """Prompt tokens not computed yet, of waiting and running requests."""
        self._deadlines: list[tuple[Time, tuple, Sequence]] = []

    def __len__(self) -> int:
        """Requests that wait, for their first step or to come back."""
        return len(self.waiting) + len(self.parked)

    @property
    def until(self) -> Time:
        """The first deadline of those to refuse once it has passed."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def wait(self, job: Sequence) -> None:
        """It computes its prompt when its turn comes."""
        self.waiting.push(job)
        self.tokens += job.target

    def refuse_after(self, job: Sequence) -> None:
        """Refuse it if it has not started by its deadline (`late`)."""
        heappush(self._deadlines, (job.request.deadline, job.order, job))

    def expect(self, forks: Iterable[Sequence], parent: Sequence) -> None:
        """Forks whose prompt `parent` computes."""
        self.unborn |= dict.fromkeys(forks, parent)

    def orphan(self, parent: Sequence) -> None:
        """It computes no prompt for its forks any more: the first of them does."""
        if not parent.forks:
            return
        heir, *heir.forks = parent.forks
        parent.forks = []
        del self.unborn[heir]
        self.expect(heir.forks, heir)
        self.wait(heir)

    def last_fork(self) -> Sequence | None:
        """The last of those that wait with pages they share; taken out."""
        job = max((job for job in self.parked if job.forked), key=order_of, default=None)
        if job is not None:
            self.parked.remove({job})
        return job

    def drop(self, job: Sequence) -> None:
        """Take out one of the requests here."""
        if job in self.unborn:
            self.unborn.pop(job).forks.remove(job)
        elif job.cached:
            self.parked.remove({job})
        else:
            self.waiting.remove({job})
            self.tokens -= job.target

    def late(self, now: Time) -> tuple[Sequence, ...]:
        """Refuse requests whose deadline has passed before they started."""
        late: list[Sequence] = []
        while self.until < now:
            job = heappop(self._deadlines)[2]
            if job.started is None and not job.refusal:
                for refused in (job, *job.forks):
                    refused.refusal = "its deadline passed while it waited"
                    refused.finished = now
                    self.unborn.pop(refused, None)
                    late.append(refused)
                job.forks.clear()
                self.tokens -= job.target
        if late:
            self.waiting.remove(set(late))
        while self._deadlines and self._deadlines[0][2].started is not None:
            heappop(self._deadlines)
        return tuple(late)


def order_of(job: Sequence) -> tuple:
    """What requests are served by."""
    return job.order
