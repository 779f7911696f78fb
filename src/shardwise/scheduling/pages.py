"""A pool of cache pages with reference counts; pages are numbers, their contents lie elsewhere.

Every page is free or has as many references as holders. A holder that wants to write a page which
others hold too gets a copy (`writable`). Taking and releasing cost time in proportion to the pages
concerned, never to the pool.
"""

from collections.abc import Iterable, Sequence

from shardwise.errors import BadRequest


class PagePool:
    """`size` pages, all free at first."""

    __slots__ = ("_free", "_references", "size")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise BadRequest(f"a page pool of {size} pages holds nothing; give it at least 1")
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._references = [0] * size

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def references(self, page: int) -> int:
        """How many hold a page; 0 where it is free."""
        return self._references[page]

    def take(self, count: int) -> list[int]:
        """`count` free pages, each held once. The caller has seen that there are so many."""
        assert count <= len(self._free), f"{count} pages wanted, {len(self._free)} free"
        if count <= 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more holder of each page."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is shared while free"
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder fewer of each page; those without any become free."""
        references, free = self._references, self._free
        for page in pages:
            left = references[page] - 1
            assert left >= 0, f"page {page} is released while free"
            references[page] = left
            if left == 0:
                free.append(page)

    def writable(self, page: int) -> int:
        """The page to write instead: itself with one holder, else a fresh page that the caller
        must copy it to, whose only holder it is (copy on write)."""
        if self._references[page] == 1:
            return page
        (fresh,) = self.take(1)
        self.release([page])
        return fresh

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the references are exactly those of `holders`; the message
        has page, references and holders of those that are wrong."""
        counted = [0] * self.size
        for pages in holders:
            for page in pages:
                counted[page] += 1
        wrong = [p for p in range(self.size) if counted[p] != self._references[p]]
        assert not wrong, [(p, self._references[p], counted[p]) for p in wrong]
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert free == {p for p in range(self.size) if not counted[p]}, "a page leaked"
