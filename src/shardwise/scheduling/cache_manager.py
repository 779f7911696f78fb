"""The cache of one replica: which pages and which slot each running sequence has.

A sequence that runs holds a slot (a row of the engine's batch, the same until it leaves) and pages
for what it has cached; the first `borrowed` of them belong to the prefix tree. One that waits with
its cache holds other things: a swapped one pages of the host, a fork pages of its parent's prompt.
What changes is written down until a step takes it (`changes`), so that an engine can follow without
looking in here: contents stay right if it makes the copies in their order, before the step writes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from shardwise.scheduling.config import SchedulerConfig
from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.kept import KeptPages
from shardwise.scheduling.pages import PageCopy, PagePool
from shardwise.scheduling.policies import Want
from shardwise.scheduling.prefix import PrefixTree
from shardwise.scheduling.requests import Request
from shardwise.scheduling.requests import Sequence as Job
from shardwise.scheduling.step import Changes


class CacheManager:
    """Pages, slots and prefix tree. Pages of the host are numbered through: the second tier of the
    prefix cache first, then those that swapped sequences use."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.size = config.page_size
        self.pool = PagePool(config.pages)
        self.kept = KeptPages(config.kept, config.page_size) if config.kept else None
        host_pages = config.host_pages if config.prefix_cache else 0
        self.tree = PrefixTree(self.pool, host_pages, self.kept)
        self.held = 0
        """Pages of running sequences now."""
        self.full = 0
        """Their pages at full length."""
        self._reuse = config.prefix_cache
        self._ahead = config.lookahead
        self._answers = config.policy != "prefill"
        self._swap = PagePool(config.swap_pages) if config.swap_pages else None
        self._swap_base = self.tree.host_pages
        self._free_slots = [*range(config.batch - 1, -1, -1)]
        self.forks = 0
        """Sequences that wait with the pages of their parents."""
        self._joined: list[Job] = []
        self._left: list[tuple[Job, int]] = []
        self._grown: list[tuple[Job, int, int, list[int]]] = []

    @property
    def swapped(self) -> int:
        """Pages of the host that swapped sequences use."""
        return self._swap.size - self._swap.free if self._swap is not None else 0

    def full_pages(self, request: Request) -> int:
        """Pages of a request at its longest; a replica that only prefills keeps no answers."""
        answer = request.most if self._answers else 1
        return pages_for(request.prompt + answer + self._ahead, self.size)

    def most_hit(self, job: Job) -> int:
        """Pages that may come from the cache: the last token is computed, as it yields the next."""
        return self._usable(job.keys, job.target)

    def _usable(self, keys: tuple[Any, ...], tokens: int) -> int:
        most = min(len(keys), (tokens - 1) // self.size) if self._reuse else 0
        if self.kept is None or not most:
            return most
        return self.kept.usable(self.tree.cells(keys, most))

    def want(self, job: Job) -> Want:
        """What a waiting or parked sequence needs to start."""
        size, ahead, full = self.size, self._ahead, self.full_pages(job.request)
        if job.forked:  # a page that is written in is not shared
            shared = len(job.pages) - (job.cached % size > 0)
            fresh = pages_for(job.cached + 1 + ahead, size) - shared
            return Want(fresh, 0, shared, full, job.cached)
        if job.cached:  # parked
            return Want(pages_for(job.cached + 1 + ahead, size), 0, 0, full, job.cached)
        found = self.tree.peek(job.keys, self.most_hit(job))
        fresh = pages_for(job.target + 1 + ahead, size) - found.device
        cached = (found.device + found.host) * size
        return Want(fresh, found.unlocked, found.device, full, cached)

    def hit_tokens(self, request: Request) -> int:
        """Tokens of a new request's prompt that are cached here, on the host or not."""
        if not self._reuse:
            return 0
        found = self.tree.peek(request.keys, self._usable(request.keys, request.prompt))
        return (found.device + found.host) * self.size

    def misfit(self, request: Request) -> str:
        """Why a request can never run here; empty where it can."""
        need = self.full_pages(request)
        if need <= self.pool.size:
            return ""
        return (
            f"its {request.prompt + request.most:,} tokens need {need:,} pages of "
            f"{self.size} and the cache has {self.pool.size:,}"
        )

    def changes(self) -> Changes | None:
        """What has changed since this was last asked; None for nothing."""
        copies = self.tree.copies
        if self.kept is not None and self.kept.grown:
            self._grown += self.kept.grown
            self.kept.grown = []
        if not (self._joined or self._left or self._grown or copies):
            return None
        changes = Changes(self._joined, self._left, self._grown, copies)
        self._joined, self._left, self._grown, self.tree.copies = [], [], [], []
        return changes

    # Running.

    def enter(self, job: Job) -> None:
        """It runs: it gets a slot, and its pages count."""
        job.slot = self._free_slots.pop()
        self.held += len(job.pages)
        self.full += self.full_pages(job.request)
        self._joined.append(job)

    def leave(self, job: Job) -> None:
        """It runs no more; its pages are still its own."""
        self.held -= len(job.pages)
        self.full -= self.full_pages(job.request)
        self._free_slots.append(job.slot)
        self._left.append((job, job.slot))
        job.slot = -1

    def take(self, count: int) -> list[int]:
        """Free pages; others are evicted for them."""
        if count > self.pool.free:
            self.tree.evict(count - self.pool.free)
        return self.pool.take(count)

    def grow(self, needs: Iterable[tuple[Job, int]]) -> None:
        """More pages for running sequences."""
        for job, count in needs:
            pages = self.pool.take(count) if count <= self.pool.free else self.take(count)
            self._grown.append((job, 0, len(job.pages), pages))
            job.pages += pages
            self.held += count
            if self.kept is not None:
                self.kept.grow(job, count)

    def cover(self, job: Job, begin: int, end: int) -> None:
        """Pages of all groups for a chunk of its prompt."""
        if self.kept is not None:
            self.kept.cover(job, begin, end)

    def computed(self, job: Job, begin: int) -> None:
        """A chunk of its prompt from `begin` on is computed: cache what is whole."""
        whole = job.cached == job.target
        if self.kept is not None:
            self.kept.drop_unfinished(job, begin)
            self.remember(job)
            self.kept.move_on(job)
            if whole and self._ahead:
                self.kept.grow(job, 1)
        elif whole:
            self.remember(job)

    def release(self, job: Job) -> None:
        """Give its pages back, those of the host, too."""
        self.pool.release(job.pages[job.borrowed :])
        if job.node is not None:
            self.tree.release(job.node)
        job.pages, job.borrowed, job.node = [], 0, None
        if job.swapped and self._swap is not None:
            self._swap.release(job.swapped)
            job.swapped = []
        if job.forked:
            self._unfork(job)
        if self.kept is not None:
            self.kept.release(job)

    # Starting.

    def lock_prefix(self, job: Job) -> None:
        """Hold what of its prompt is cached."""
        most = self.most_hit(job)
        if self.kept is not None:
            self.kept.hit(job, self.tree.cells(job.keys, most))
        job.node = self.tree.lock(job.keys, most)

    def start(self, job: Job) -> int:
        """Pages for a whole prompt whose cached beginning is locked; returns the tokens that come
        from the host."""
        missing = self.tree.missing(job.node)
        if missing > self.pool.free:
            self.tree.evict(missing - self.pool.free)
        self.tree.load(job.node)
        job.pages = self.tree.pages_of(job.node)
        job.borrowed = len(job.pages)
        job.cached = job.borrowed * self.size
        job.hit += job.cached
        job.host_hit += missing * self.size
        job.pages += self.take(pages_for(job.target + self._ahead, self.size) - job.borrowed)
        self.enter(job)
        return missing * self.size

    def resume(self, job: Job) -> int:
        """Pages for a sequence that comes with its cache; returns the tokens that come from the
        host."""
        if job.forked:
            self._own_tail(job)
            self._unfork(job)
        else:
            job.node = self.tree.root
        job.pages += self.take(pages_for(job.cached + self._ahead, self.size) - len(job.pages))
        copied = job.cached if job.swapped else 0
        if job.swapped:
            self._copy_in(job)
        if self.kept is not None:
            self.tree.copies += self.kept.resume(job, len(job.pages))
        self.enter(job)
        return copied

    # Leaving with a cache.

    def swap_out(self, job: Job) -> bool:
        """Move a sequence's cache to the host and give its pages back, where there is room."""
        pages = pages_for(job.cached, self.size)
        if self._swap is None or pages > self._swap.free:
            return False
        kept = self.kept.swap_out(job, pages) if self.kept is not None else ([], [])
        if kept is None:
            return False
        swapped = self._swap.take(pages)
        targets = [self._swap_base + page for page in swapped]
        self.tree.copies.append(PageCopy("out", job.pages[:pages], targets))
        self.tree.copies += kept[0]
        self.release(job)
        job.swapped, job.swapped_kept = swapped, kept[1]
        return True

    def remember(self, job: Job) -> None:
        """Hang the full pages that have keys into the prefix tree."""
        if not self._reuse:
            return
        known = min(len(job.keys), job.cached // self.size)
        if self.forks:  # a page that a fork holds, too, could not be evicted
            known = next(
                (i for i in range(job.borrowed, known) if self.pool.references(job.pages[i]) > 1),
                known,
            )
        if known <= job.borrowed:
            return
        keys, pages = job.keys[job.borrowed : known], job.pages[job.borrowed : known]
        cells = self.kept.cells(job, job.borrowed, known) if self.kept is not None else ()
        job.node, used = self.tree.insert(job.node, keys, pages, cells)
        if used != pages and job.slot >= 0:  # another has brought the same meanwhile
            self._grown.append((job, 0, job.borrowed, used))
        job.pages[job.borrowed : known] = used
        job.borrowed = known

    def share(self, parent: Job, child: Job) -> None:
        """Let a fork hold the pages of its parent's prompt; all but its last token is a hit."""
        child.cached = child.target = child.request.prompt - 1
        pages = pages_for(child.cached, self.size)
        child.borrowed = min(parent.borrowed, pages)
        child.pages = parent.pages[:pages]
        child.node = self.tree.lock(child.keys, child.borrowed)
        self.pool.share(child.pages[child.borrowed :])
        child.hit += child.cached
        child.forked = True
        self.forks += 1

    def _unfork(self, job: Job) -> None:
        job.forked = False
        self.forks -= 1

    def _own_tail(self, job: Job) -> None:
        """A copy of the page in which a fork writes next, if it shares it."""
        if job.cached % self.size == 0:
            return
        shared = job.pages[-1]
        (own,) = self.take(1)
        self.tree.copies.append(PageCopy("fork", (shared,), (own,)))
        if len(job.pages) > job.borrowed:
            self.pool.release((shared,))
        else:  # the tree's own: lock one page less of it
            node, job.borrowed = job.node, job.borrowed - 1
            job.node = self.tree.lock(job.keys, job.borrowed)
            self.tree.release(node)
        job.pages[-1] = own

    def _copy_in(self, job: Job) -> None:
        assert self._swap is not None
        sources = [self._swap_base + page for page in job.swapped]
        self.tree.copies.append(PageCopy("in", sources, job.pages[: len(sources)]))
        self._swap.release(job.swapped)
        job.swapped = []

    def check(self, running: Sequence[Job], others: Sequence[Job]) -> None:
        """Raise AssertionError unless pages, references and sums agree with a recount."""
        held = self.tree.check()
        held += [job.pages[job.borrowed :] for job in (*running, *others)]
        self.pool.check(held)
        slots = [*self._free_slots, *(job.slot for job in running)]
        assert sorted(slots) == [*range(len(slots))], "a slot is free and in use, or neither"
        if self._swap is not None:
            self._swap.check([job.swapped for job in others])
        if self.kept is not None:
            self.kept.check([*running, *others])
        assert self.held == sum(len(job.pages) for job in running)
        assert self.full == sum(self.full_pages(job.request) for job in running)
        for job in running:
            assert self.tree.pages_of(job.node)[: job.borrowed] == job.pages[: job.borrowed]
