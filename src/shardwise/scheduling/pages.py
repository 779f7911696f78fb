"""A pool of cache pages with reference counts; a page is a number here, its contents are the
caller's.

Every page is free or has as many references as holders. Taking and releasing cost time in
proportion to the pages concerned, never to the pool.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from shardwise.errors import BadRequest


class PageCopy(NamedTuple):
    """Pages whose contents are copied, each of `sources` to its like of `targets`: "out" from the
    device to the host, "in" from the host to the device, "fork" from device to device. `group` is 0
    for layers that keep everything, from 1 on for those with pools of their own (`kept.py`)."""

    kind: Literal["out", "in", "fork"]
    sources: Sequence[int]
    targets: Sequence[int]
    group: int = 0


class PagePool:
    """`size` pages, all free at first. Pages are listed once they are held, so that a pool takes
    memory for what it has held at most, not for its size."""

    __slots__ = ("_references", "_released", "size")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise BadRequest(f"a page pool of {size} pages holds nothing; give it at least 1")
        self.size = size
        self._released: list[int] = []
        self._references: list[int] = []

    @property
    def free(self) -> int:
        """Pages without a reference."""
        return self.size - len(self._references) + len(self._released)

    def references(self, page: int) -> int:
        """How many hold a page; 0 where it is free."""
        return self._references[page] if page < len(self._references) else 0

    def take(self, count: int) -> list[int]:
        """`count` free pages, each held once. The caller has seen that there are so many."""
        assert count <= self.free, f"{count} pages wanted, {self.free} free"
        if count <= 0:
            return []
        again = self._released[-count:]
        del self._released[-count:]
        for page in again:
            self._references[page] = 1
        begin, fresh = len(self._references), count - len(again)
        self._references += [1] * fresh
        return [*range(begin + fresh - 1, begin - 1, -1), *again]

    def share(self, pages: Iterable[int]) -> None:
        """One more holder of each page."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is shared while free"
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder fewer of each page; those without any become free."""
        references, free = self._references, self._released
        for page in pages:
            left = references[page] - 1
            assert left >= 0, f"page {page} is released while free"
            references[page] = left
            if left == 0:
                free.append(page)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the references are exactly those of `holders`; the message
        has page, references and holders of those that are wrong."""
        listed = len(self._references)
        counted = [0] * listed
        for pages in holders:
            for page in pages:
                counted[page] += 1
        wrong = [p for p in range(listed) if counted[p] != self._references[p]]
        assert not wrong, [(p, self._references[p], counted[p]) for p in wrong]
        free = set(self._released)
        assert len(free) == len(self._released), "a page is free twice"
        assert free == {p for p in range(listed) if not counted[p]}, "a page leaked"
