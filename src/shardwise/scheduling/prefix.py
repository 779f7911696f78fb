"""Prefix cache: a radix tree over the keys of full pages, with LRU eviction and a host tier.

An edge holds a run of keys and, for each, the page with the cache of those tokens. A sequence locks
the path that it uses; what nobody locks may be evicted, the leaf that was used longest ago first
(of one edge its last page first), in O(log n). With a host tier an evicted page's contents move to
a page of the host's memory, where they have their own LRU, and come back when they are wanted;
`copies` lists these moves until their caller takes them. The pages on the device are always a top
part of the tree: a page is of no use without those before it.

Book: 7.4.2 (LRU tree; host memory as a second tier). The tree owns one reference of each page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from shardwise.scheduling.kept import KeptCell, KeptPages
from shardwise.scheduling.pages import PageCopy, PagePool

Keys = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class PrefixNode:
    """An edge and what hangs below it. `pages` is None while the run lies on the host, in its
    pages `hosted`; `live` is how many children have pages on the device. `cells` are what layers
    that keep only the end of a sequence have of each key, where there are such (`kept.py`)."""

    keys: Keys
    pages: list[int] | None
    parent: "PrefixNode | None"
    tick: int
    children: "dict[Any, PrefixNode]" = field(default_factory=dict)
    live: int = 0
    locks: int = 0
    hosted: list[int] = field(default_factory=list)
    cells: list[KeptCell] = field(default_factory=list)


class PrefixHit(NamedTuple):
    """A match: pages on the device, pages on the host after them, and how many of the former are
    not locked now, so that using them takes them from what can be evicted."""

    device: int
    host: int
    unlocked: int


class PrefixTree:
    """The cache of one replica, over the pages of `pool`; `host_pages` is the second tier, `kept`
    has what its cells hold."""

    def __init__(self, pool: PagePool, host_pages: int = 0, kept: KeptPages | None = None) -> None:
        self.pool = pool
        self.kept = kept
        self.host_pages = host_pages
        self.root = PrefixNode((), [], None, 0)
        self.device = 0
        """Pages of the device that the tree holds."""
        self.unlocked = 0
        """Those that can be evicted."""
        self.copies: list[PageCopy] = []
        """Moves between device and host that are still to be made, in order."""
        self.host = PagePool(host_pages) if host_pages else None
        self._tick = self._serial = self._nodes = 0
        self._leaves: list[tuple[int, int, PrefixNode]] = []
        self._host_leaves: list[tuple[int, int, PrefixNode]] = []

    @property
    def hosted(self) -> int:
        """Pages in use on the host."""
        return self.host.size - self.host.free if self.host is not None else 0

    def peek(self, keys: Keys, most: int) -> PrefixHit:
        """How much of the first `most` keys is cached; changes nothing."""
        device = host = unlocked = at = 0
        node = self.root
        while at < most:
            child = node.children.get(keys[at])
            if child is None:
                break
            same = _common(child.keys, keys, at, most)
            if child.pages is None:
                host += same
            else:
                device += same
                if not child.locks:
                    unlocked += same
            at += same
            if same < len(child.keys):
                break
            node = child
        return PrefixHit(device, host, unlocked)

    def cells(self, keys: Keys, most: int) -> list[KeptCell]:
        """Of the longest match of the first `most` keys."""
        node, found = self.root, []
        while len(found) < most:
            child = node.children.get(keys[len(found)])
            if child is None:
                break
            same = _common(child.keys, keys, len(found), most)
            found += child.cells[:same]
            if same < len(child.keys):
                break
            node = child
        return found

    def lock(self, keys: Keys, most: int) -> PrefixNode:
        """Lock the longest match of the first `most` keys and return its deepest node."""
        node, at = self.root, 0
        while at < most:
            child = node.children.get(keys[at])
            if child is None:
                break
            same = _common(child.keys, keys, at, most)
            node = self._split(child, same) if same < len(child.keys) else child
            at += same
        tick = self._next()
        for step in self._path(node):
            if not step.locks and step.pages is not None:
                self.unlocked -= len(step.keys)
            step.locks += 1
            step.tick = tick
        return node

    def missing(self, node: PrefixNode) -> int:
        """Pages of a path that lie on the host."""
        return sum(len(step.keys) for step in self._path(node) if step.pages is None)

    def load(self, node: PrefixNode) -> int:
        """Bring a locked path's pages from the host into free pages; returns how many came."""
        came = 0
        for step in reversed(list(self._path(node))):
            if step.pages is None:
                step.pages = self.pool.take(len(step.keys))
                came += len(step.keys)
                self.copies.append(PageCopy("in", tuple(step.hosted), tuple(step.pages)))
                self._leave_host(step)
                if step.parent is not None:
                    step.parent.live += 1
        self.device += came
        return came

    def pages_of(self, node: PrefixNode) -> list[int]:
        """The pages of a path, from the front."""
        runs = [step.pages or [] for step in self._path(node)]
        return [page for run in reversed(runs) for page in run]

    def insert(
        self, node: PrefixNode, keys: Keys, pages: list[int], cells: Sequence[KeptCell] = ()
    ) -> tuple[PrefixNode, list[int]]:
        """Hang computed pages below a node that the caller has locked, and lock them for it.

        The tree takes over the caller's references. Returns the deepest node and the pages to use:
        where another sequence has brought the same keys meanwhile, its pages, and the caller's
        duplicates are released.
        """
        tick, at, used = self._next(), 0, []
        for step in self._path(node):
            step.tick = tick
        while at < len(keys):
            child = node.children.get(keys[at])
            if child is None:
                child = self._attach(node, keys[at:], pages[at:], tick)
                child.cells += cells[at:]
            else:
                same = _common(child.keys, keys, at, len(keys))
                if same < len(child.keys):
                    child = self._split(child, same)
                self._adopt(child, pages[at : at + same])
                if self.kept is not None:
                    self.kept.merge(child.cells, cells[at : at + same])
            child.locks += 1
            child.tick = tick
            used += child.pages or []
            at += len(child.keys)
            node = child
        return node, used

    def release(self, node: PrefixNode) -> None:
        """Undo one lock of a path; what nobody locks any more counts as used just now."""
        tick = self._next()
        for step in self._path(node):
            step.locks -= 1
            step.tick = tick
            if not step.locks:
                self.unlocked += len(step.keys)
                self._offer(step)

    def evict(self, count: int) -> None:
        """Free `count` of the unlocked pages of the device, the least recently used first."""
        assert count <= self.unlocked, f"{count} pages to evict, {self.unlocked} unlocked"
        # One by one where they go to the host, so that its order is that of single evictions.
        largest = 1 if self.host_pages else count
        while count > 0:
            node = self._pop(self._leaves, on_host=False)
            assert node is not None, "unlocked pages without a leaf"
            taken = min(count, len(node.keys), largest)
            if taken < len(node.keys):
                self._split(node, len(node.keys) - taken)
            self._demote(node)
            count -= taken

    def check(self) -> list[list[int]]:
        """Recount everything; returns the pages held. Raises AssertionError where it is wrong."""
        nodes = list(self._below(self.root))
        device = [n for n in nodes if n.pages is not None]
        assert self.device == sum(len(n.keys) for n in device)
        assert self.unlocked == sum(len(n.keys) for n in device if not n.locks)
        if self.host is not None:
            self.host.check([n.hosted for n in nodes])
        assert self._nodes == len(nodes)
        for n in nodes:
            assert n.parent is not None
            assert n.parent.children[n.keys[0]] is n
            assert n.keys
            assert len(n.hosted if n.pages is None else n.pages) == len(n.keys)
            assert n.pages is None or not n.hosted
            assert n.pages is None or n.parent.pages is not None, "a page without its prefix"
            assert n.live == sum(c.pages is not None for c in n.children.values())
            if n.parent is not self.root:
                assert n.parent.locks >= n.locks
                assert n.parent.tick >= n.tick
        return [n.pages for n in nodes if n.pages is not None]

    def _next(self) -> int:
        self._tick += 1
        return self._tick

    def _path(self, node: PrefixNode | None) -> Iterator[PrefixNode]:
        """A node and those above it, the root left out."""
        while node is not None and node is not self.root:
            yield node
            node = node.parent

    def _below(self, node: PrefixNode) -> Iterator[PrefixNode]:
        stack = list(node.children.values())
        while stack:
            found = stack.pop()
            yield found
            stack.extend(found.children.values())

    def _attach(self, parent: PrefixNode, keys: Keys, pages: list[int], tick: int) -> PrefixNode:
        child = PrefixNode(keys, pages, parent, tick)
        parent.children[keys[0]] = child
        parent.live += 1
        self._nodes += 1
        self.device += len(keys)
        return child

    def _adopt(self, node: PrefixNode, pages: list[int]) -> None:
        """A computed run meets the same run in the tree: keep one copy on the device."""
        if node.pages is None:
            node.pages = pages
            self._leave_host(node)
            self.device += len(pages)
            if node.parent is not None:
                node.parent.live += 1
            return
        self.pool.release(pages)
        if not node.locks:
            self.unlocked -= len(node.keys)

    def _split(self, node: PrefixNode, at: int) -> PrefixNode:
        """Cut an edge after `at` keys; the node keeps the lower part, the new upper is returned."""
        parent = node.parent
        assert parent is not None
        upper_pages = None if node.pages is None else node.pages[:at]
        upper = PrefixNode(node.keys[:at], upper_pages, parent, node.tick)
        upper.locks = node.locks
        upper.live = 0 if node.pages is None else 1
        upper.hosted, node.hosted = node.hosted[:at], node.hosted[at:]
        upper.cells, node.cells = node.cells[:at], node.cells[at:]
        parent.children[upper.keys[0]] = upper
        node.keys = node.keys[at:]
        node.pages = None if node.pages is None else node.pages[at:]
        node.parent = upper
        upper.children[node.keys[0]] = node
        self._nodes += 1
        return upper

    def _demote(self, node: PrefixNode) -> None:
        """Take a leaf's pages from the device: to the host if it has room, else away."""
        assert node.pages is not None
        assert node.parent is not None
        size, parent, pages = len(node.keys), node.parent, node.pages
        self.pool.release(pages)
        self.device -= size
        self.unlocked -= size
        parent.live -= 1
        if self._host_room(size):
            assert self.host is not None
            node.pages, node.hosted = None, self.host.take(size)
            self.copies.append(PageCopy("out", tuple(pages), tuple(node.hosted)))
            self._offer(node)
        else:
            for gone in self._below(node):
                self._leave_host(gone)
            self._forget(node)
            self._nodes -= 1 + sum(1 for _ in self._below(node))
            del parent.children[node.keys[0]]
            for gone in (node, *self._below(node)):
                gone.parent = None
        self._offer(parent)

    def _host_room(self, size: int) -> bool:
        """Make room on the host by dropping what was used longest ago."""
        if size > self.host_pages:
            return False
        while self.hosted + size > self.host_pages:
            node = self._pop(self._host_leaves, on_host=True)
            if node is None:
                return False
            over = min(self.hosted + size - self.host_pages, len(node.keys))
            if over < len(node.keys):
                self._split(node, len(node.keys) - over)
            parent = node.parent
            assert parent is not None
            del parent.children[node.keys[0]]
            node.parent = None
            self._nodes -= 1
            self._leave_host(node)
            self._forget(node)
            self._offer(parent)
        return True

    def _forget(self, node: PrefixNode) -> None:
        """Let go of what the cells of a node and of those below it hold."""
        if self.kept is not None:
            for gone in (node, *self._below(node)):
                self.kept.forget(gone.cells)

    def _leave_host(self, node: PrefixNode) -> None:
        if self.host is not None:
            self.host.release(node.hosted)
            node.hosted = []

    def _offer(self, node: PrefixNode) -> None:
        """Enter a node in the heap of leaves that it belongs to now, if it is one."""
        if node.locks or node is self.root:
            return
        if node.pages is None:
            if node.children:
                return
            heap = self._host_leaves
        elif node.live:
            return
        else:
            heap = self._leaves
        self._serial += 1
        heappush(heap, (node.tick, self._serial, node))
        if len(heap) > 64 + 4 * self._nodes:
            heap[:] = [e for e in heap if _valid(e, heap is self._host_leaves)]
            heapify(heap)

    def _pop(self, heap: list[tuple[int, int, PrefixNode]], on_host: bool) -> PrefixNode | None:
        """The oldest leaf; entries that no longer hold are dropped on the way."""
        while heap:
            entry = heappop(heap)
            if _valid(entry, on_host):
                return entry[2]
        return None


def _valid(entry: tuple[int, int, PrefixNode], on_host: bool) -> bool:
    tick, _, node = entry
    if node.parent is None or node.locks or node.tick != tick:
        return False
    if on_host:
        return node.pages is None and not node.children
    return node.pages is not None and not node.live


def _common(edge: Keys, keys: Keys, at: int, most: int) -> int:
    """How many keys of an edge stand in `keys[at:most]`."""
    length = min(len(edge), most - at)
    if edge[:length] == keys[at : at + length]:
        return length
    for i in range(length):
        if edge[i] != keys[at + i]:
            return i
    raise AssertionError("keys that differ are equal one by one")
