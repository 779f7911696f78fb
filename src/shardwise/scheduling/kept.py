"""Pages of the layers that need only the end of a sequence: sliding windows, recurrent states.

Each group of such layers has a pool and a table of its own beside those of full attention, with the
same places: page i holds what tokens i S to (i + 1) S leave. Before it writes in page i a sequence
needs the `reach` pages before it, and what lies further back is given up as it moves on. A window
of W tokens reaches over ceil((W - 1) / S) pages. A recurrent state is a group that reaches over 1:
its page i holds the state after the last token written in it, so a step reads the page of the token
before its first, writes that of its last, and leaves a copy wherever it begins a new page.

A running sequence holds so few of these pages that a pool with `least_pages` never runs out: a slot
of the batch brings them. What else is free keeps cached prefixes: for each key of the prefix tree a
`KeptCell` has its pages of these groups, and the one used longest ago goes first when a page is
wanted. A cached prefix of n pages serves where the last `reach` of them are still there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwise.errors import BadRequest
from shardwise.scheduling.pages import PageCopy, PagePool
from shardwise.scheduling.requests import Sequence as Job

GONE = -1
"""In place of a page: it is not kept any more."""
AHEAD = 2
"""Pages that a sequence may get before the tokens in front of them are out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """`pages` of the device and `host_pages` for swapped sequences; `state`: a prompt's chunk
    writes only the page of its last token."""

    reach: int
    pages: int
    host_pages: int = 0
    state: bool = False


def least_pages(reach: int, batch: int, budget: int, page_size: int) -> int:
    """Pages that `batch` sequences never run out of, with chunks of `budget` tokens in a step."""
    return batch * (reach + 2 + AHEAD) + budget // page_size + 1


@dataclass(slots=True, eq=False)
class KeptCell:
    """Of one key of the prefix tree, the page in each group, or GONE."""

    pages: list[int]


class KeptPages:
    """The pools of all groups that reach back less than to the beginning."""

    def __init__(self, groups: Sequence[KeptGroup], page_size: int) -> None:
        self.groups = groups
        self.size = page_size
        self.grown: list[tuple[Job, int, int, list[int]]] = []
        """What the tables of running sequences got, until it is taken."""
        self._pools = [PagePool(group.pages) for group in groups]
        self._hosts = [PagePool(g.host_pages) if g.host_pages else None for g in groups]
        self._old: list[dict[int, KeptCell]] = [{} for _ in groups]  # used longest ago first

    @property
    def grain(self) -> int:
        """Tokens at whose multiples a prompt's chunk should end: states are kept only there."""
        return self.size if any(group.state for group in self.groups) else 1

    # A sequence moves on.

    def cover(self, job: Job, begin: int, end: int) -> None:
        """Pages for tokens `begin` to `end`, which a step writes, for a prompt's chunk."""
        last = (end - 1) // self.size
        for number, group in enumerate(self.groups):
            pages = job.kept[number]
            first = last if group.state else begin // self.size
            fresh = [at for at in range(first, last + 1) if at not in pages]
            self._take(job, number, fresh)

    def grow(self, job: Job, count: int) -> None:
        """A sequence that decodes got `count` pages of full attention: as many here. It writes in
        the page before them now, if not yet in them; only a simulation leaps over more than
        `AHEAD`, and holds what is in reach at the end."""
        end = len(job.pages)
        now = end - 1 if count > AHEAD else end - count - 1
        for number, group in enumerate(self.groups):
            pages = job.kept[number]
            first = max(max(pages, default=-1) + 1, now - group.reach)
            self._give_up(number, pages, now - group.reach)
            self._take(job, number, range(first, end))

    def drop_unfinished(self, job: Job, begin: int) -> None:
        """After a chunk from `begin` on: states of pages that it left without writing their end."""
        now = (job.cached - 1) // self.size
        for number, group in enumerate(self.groups):
            pages = job.kept[number]
            if group.state:
                for at in [at for at in pages if at < now and begin < (at + 1) * self.size]:
                    self._pools[number].release([pages.pop(at)])

    def move_on(self, job: Job) -> None:
        """Give up what is out of reach of the next token."""
        for number, group in enumerate(self.groups):
            self._give_up(number, job.kept[number], job.cached // self.size - group.reach)

    def resume(self, job: Job, pages: int) -> list[PageCopy]:
        """Pages for a sequence that comes with its cache, whose full table has `pages`; the copies
        of those that were swapped."""
        copies: list[PageCopy] = []
        job.kept = [{} for _ in self.groups]
        swapped, job.swapped_kept = job.swapped_kept, []
        for number, group in enumerate(self.groups):
            host = self._hosts[number]
            if not swapped or host is None:
                behind = 1 if group.state else group.reach
                self._take(job, number, range(max(0, job.cached // self.size - behind), pages))
                continue
            places = [*swapped[number]]
            self._take(job, number, [*places, *range(places[-1] + 1, pages)])
            targets = [job.kept[number][at] for at in places]
            sources = list(swapped[number].values())
            copies.append(PageCopy("in", sources, targets, number + 1))
            host.release(sources)
        return copies

    def release(self, job: Job) -> None:
        """Give its pages back, those of the host, too."""
        for pool, pages in zip(self._pools, job.kept, strict=False):
            pool.release(pages.values())
        for host, pages in zip(self._hosts, job.swapped_kept, strict=False):
            if host is not None:
                host.release(pages.values())
        job.kept, job.swapped_kept = [], []

    def swap_out(self, job: Job, pages: int) -> tuple[list[PageCopy], list[dict[int, int]]] | None:
        """Pages of the host for what is kept of its first `pages`, and the copies there; None
        where there is no room."""
        for number, host in enumerate(self._hosts):
            if host is None or host.free < len(job.kept[number]):
                return None
        copies: list[PageCopy] = []
        swapped: list[dict[int, int]] = []
        for number, host in enumerate(self._hosts):
            assert host is not None
            places = [at for at in job.kept[number] if at < pages]
            targets = host.take(len(places))
            sources = [job.kept[number][at] for at in places]
            copies.append(PageCopy("out", sources, targets, number + 1))
            swapped.append(dict(zip(places, targets, strict=True)))
        return copies, swapped

    # Cached prefixes.

    def hit(self, job: Job, cells: Sequence[KeptCell]) -> None:
        """Hold what a cached prefix keeps; `cells` are those of its keys."""
        job.kept = [{} for _ in self.groups]
        for number, group in enumerate(self.groups):
            for at in range(max(0, len(cells) - group.reach), len(cells)):
                page = cells[at].pages[number]
                self._pools[number].share([page])
                job.kept[number][at] = page
                self._old[number][page] = self._old[number].pop(page)

    def usable(self, cells: Iterable[KeptCell]) -> int:
        """The longest prefix of a match, in pages, that has what it needs."""
        runs, longest = [0] * len(self.groups), 0
        for count, cell in enumerate(cells, 1):
            runs = [
                run + 1 if page != GONE else 0 for run, page in zip(runs, cell.pages, strict=True)
            ]
            if all(run >= min(g.reach, count) for run, g in zip(runs, self.groups, strict=True)):
                longest = count
        return longest

    def cells(self, job: Job, first: int, end: int) -> list[KeptCell]:
        """Cells for pages `first` to `end` of a sequence, which the tree then holds, too."""
        made = []
        for at in range(first, end):
            cell = KeptCell([GONE] * len(self.groups))
            for number, held in enumerate(job.kept):
                page = held.get(at, GONE)
                if page != GONE and page not in self._old[number]:
                    self._pools[number].share([page])
                    cell.pages[number] = page
                    self._old[number][page] = cell
            made.append(cell)
        return made

    def merge(self, cells: Iterable[KeptCell], more: Iterable[KeptCell]) -> None:
        """The same keys came twice: fill what is gone, and let go of the rest."""
        for cell, other in zip(cells, more, strict=True):
            for number, page in enumerate(other.pages):
                if page != GONE and cell.pages[number] == GONE:
                    cell.pages[number] = page
                    self._old[number][page] = cell
                    other.pages[number] = GONE
            self.forget([other])

    def forget(self, cells: Iterable[KeptCell]) -> None:
        """The tree lets go of some keys."""
        for cell in cells:
            for number, page in enumerate(cell.pages):
                if page != GONE:
                    del self._old[number][page]
                    self._pools[number].release([page])
                    cell.pages[number] = GONE

    def used(self, number: int) -> int:
        """Pages of a group that running sequences or cached prefixes hold."""
        return self._pools[number].size - self._pools[number].free

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise AssertionError unless pages and references agree with a recount."""
        for number, pool in enumerate(self._pools):
            running = [list(job.kept[number].values()) for job in jobs if job.kept]
            pool.check([*running, list(self._old[number])])
            assert all(c.pages[number] == page for page, c in self._old[number].items())
            if (host := self._hosts[number]) is not None:
                host.check([[*j.swapped_kept[number].values()] for j in jobs if j.swapped_kept])

    def _take(self, job: Job, number: int, places: Sequence[int]) -> None:
        """Free pages for some places; what cached prefixes used longest ago goes first."""
        pool, old = self._pools[number], self._old[number]
        while pool.free < len(places):
            page = next(iter(old))
            old.pop(page).pages[number] = GONE
            pool.release([page])
        pages = pool.take(len(places))
        job.kept[number].update(zip(places, pages, strict=True))
        self.grown += [
            (job, number + 1, at, [page]) for at, page in zip(places, pages, strict=True)
        ]

    def _give_up(self, number: int, pages: dict[int, int], below: int) -> None:
        for at in [at for at in pages if at < below]:
            self._pools[number].release([pages.pop(at)])


def check_kept(group: KeptGroup, batch: int, budget: int, page_size: int) -> None:
    """Raise BadRequest unless the pool of a group lasts for the batch."""
    least = least_pages(group.reach, batch, budget, page_size)
    if group.pages < least:
        raise BadRequest(
            f"a group of layers that reaches over {group.reach} pages has {group.pages} of them; "
            f"{batch} sequences and chunks of {budget} tokens need {least}, so give it those, or "
            "take a smaller batch or budget"
        )
