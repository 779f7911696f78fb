"""A queue in the order of keys that can be looked through without being changed."""

from collections.abc import Iterator
from heapq import heappop, heappush

from shardwise.scheduling.requests import Sequence


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
