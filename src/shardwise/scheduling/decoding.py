"""The sequences that decode. Each gets a token every beat, so what comes when is known ahead.

A sequence's cached tokens are its `base` plus the beats so far; it ends at a known beat, and needs
its next page at beats that are equal modulo the page size. Steps in which nothing changes therefore
cost nothing here, whatever the number of sequences.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush

from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.requests import Sequence, Time


class Decoding:
    """Sequences in lock step; `lookahead` is how many tokens beyond one a step may add."""

    def __init__(self, page_size: int, lookahead: int) -> None:
        self.beats = 0
        self.context = 0
        """Cached tokens of all sequences."""
        self.last_beat: Time = 0
        self._size = page_size
        self._lookahead = lookahead
        self._jobs: dict[Sequence, None] = {}
        self._fresh: dict[Sequence, None] = {}  # joined since the last beat
        self._ends: list[tuple[int, tuple, Sequence]] = []
        self._due: list[dict[Sequence, None]] = [{} for _ in range(page_size)]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._jobs)

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def cached(self, job: Sequence) -> int:
        """Cached tokens of a sequence now."""
        return job.base + self.beats

    def growing(self) -> list[tuple[int, int]]:
        """Of each sequence, its cached tokens and the most that it may still cache."""
        beats = self.beats
        return [
            (job.base + beats, job.request.prompt + job.request.most - job.base - beats)
            for job in self._jobs
        ]

    def join(self, job: Sequence) -> None:
        """Let a sequence decode from the next beat on; it has pages for what is cached."""
        job.base = job.cached - self.beats
        job.end = self.beats + job.request.output - job.emitted
        self._jobs[job] = None
        self._fresh[job] = None
        self._schedule(job)
        self.context += job.cached

    def leave(self, job: Sequence) -> None:
        """Take a sequence out; what it has cached and emitted is written down."""
        length = job.base + self.beats
        job.decoded += length - job.cached
        job.cached = length
        job.emitted = length - job.request.prompt + 1
        del self._jobs[job]
        del self._due[job.due][job]
        self.context -= length
        if job in self._fresh:
            del self._fresh[job]
        else:
            job.last_token = self.last_beat

    def beat(
        self, steps: int, now: Time, accepted: Mapping[Sequence, int] | None
    ) -> tuple[list[Sequence], list[Time], list[Sequence]]:
        """One token for all, `steps` times over, and `accepted` ones beyond it. Returns who ended
        (and has left), when those that joined since the last beat emitted a token before, and
        those of them that had not (forks)."""
        before = [job.last_token for job in self._fresh if job.last_token is not None]
        first = [job for job in self._fresh if job.first_token is None]
        for job in first:
            job.first_token = now
        self._fresh.clear()
        self.beats += steps
        self.context += len(self._jobs) * steps
        self.last_beat = now
        for job, more in (accepted or {}).items():
            self._advance(job, min(more, job.end - self.beats))
        ended: list[Sequence] = []
        while self._ends and self._ends[0][0] <= self.beats:
            end, _, job = heappop(self._ends)
            if job.end == end and job in self._jobs:
                ended.append(job)
                self.leave(job)
        return ended, before, first

    def needing(self) -> Collection[Sequence]:
        """Who needs one more page for the next step."""
        if not self._lookahead:
            return self._due[self.beats % self._size]
        reach = self.beats + 1 + self._lookahead
        return [job for job in self._jobs if job.base + reach > len(job.pages) * self._size]

    def outgrowing(self, steps: int, skip: int) -> Iterable[tuple[Sequence, int]]:
        """Who needs how many more pages for `steps` steps after `skip`."""
        if self._lookahead:
            return [(job, 1) for job in self.needing()]
        size, start = self._size, self.beats + skip
        return [
            (job, (steps - 1 - i) // size + 1)
            for i in range(min(steps, size))
            for job in self._due[(start + i) % size]
        ]

    def repeat(self, free: int) -> int:
        """How often the next step can be run before a sequence ends or `free` pages are used up;
        the pages of the first are there."""
        while self._ends[0][2] not in self._jobs or self._ends[0][2].end != self._ends[0][0]:
            heappop(self._ends)
        most = self._ends[0][0] - self.beats
        size, alive = self._size, len(self._jobs)
        if alive * pages_for(most, size) <= free:
            return most
        rounds = free // alive
        steps, left = 1 + rounds * size, free - rounds * alive
        while steps < most:
            left -= len(self._due[(self.beats + steps) % size])
            if left < 0:
                break
            steps += 1
        return min(steps, most)

    def _advance(self, job: Sequence, extra: int) -> None:
        """Move a sequence ahead of the beat by tokens that speculation brought it."""
        if extra < 1:
            return
        job.base += extra
        job.end -= extra
        self.context += extra
        del self._due[job.due][job]
        self._schedule(job)

    def _schedule(self, job: Sequence) -> None:
        """Note the beat at which a sequence ends, and those at which it needs a page: with c whole
        pages of tokens it does when base + beat + lookahead reaches c."""
        job.due = -(job.base + self._lookahead) % self._size
        self._due[job.due][job] = None
        heappush(self._ends, (job.end, job.order, job))
