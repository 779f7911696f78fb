"""Taking pages back from sequences that run, so that more urgent ones go on."""

from typing import Protocol

from shardwise.scheduling.backlog import Backlog, order_of
from shardwise.scheduling.cache_manager import CacheManager
from shardwise.scheduling.config import SchedulerConfig
from shardwise.scheduling.decoding import Decoding
from shardwise.scheduling.policies import Room
from shardwise.scheduling.requests import Sequence


class Preemptible(Protocol):
    """The parts of a scheduler from which sequences are taken."""

    config: SchedulerConfig
    cache: CacheManager
    decoding: Decoding
    prefilling: list[Sequence]
    handed: set[Sequence]
    idle: Backlog

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted."""
        ...

    def room(self) -> Room:
        """Slots and pages left."""
        ...


def make_room(s: Preemptible) -> tuple[list[Sequence], int]:
    """Preempt until the next decoding step has its pages. Returns who, and the tokens copied to
    the host."""
    preempted: list[Sequence] = []
    copied = 0
    while len(s.decoding.needing()) > s.available:
        if drop_fork(s):
            continue
        victim = max((*s.decoding, *s.prefilling), key=order_of)
        copied += _preempt(s, victim)
        preempted.append(victim)
    return preempted, copied


def displace(s: Preemptible) -> tuple[list[Sequence], int]:
    """Preempt until the first waiting request is not blocked by a less urgent class."""
    preempted: list[Sequence] = []
    copied = 0
    while s.idle.waiting and (victim := _displaced(s)) is not None:
        copied += _preempt(s, victim)
        preempted.append(victim)
    return preempted, copied


def drop_fork(s: Preemptible) -> bool:
    """Take the shared pages of the last fork that waits, which then computes its prompt again;
    whether there was one."""
    job = s.idle.last_fork() if s.cache.forks else None
    if job is None:
        return False
    s.cache.release(job)
    job.hit -= job.cached
    job.cached, job.target = 0, job.request.prompt
    s.idle.wait(job)
    return True


def _displaced(s: Preemptible) -> Sequence | None:
    """Who has to go for the first waiting request: the last of a less urgent class, where the
    request does not fit otherwise."""
    head = next(iter(s.idle.waiting))
    victim = max((*s.decoding, *s.prefilling), key=order_of, default=None)
    if victim is None or victim.request.priority <= head.request.priority:
        return None
    want = s.cache.want(head)
    # Caches that wait to be fetched stay: beside them it may not fit whoever goes.
    left = s.config.pages - sum(len(job.pages) for job in s.handed)
    if max(want.fresh, want.full - want.shared) + want.unlocked > left:
        return None
    return None if s.room().take(want) else victim


def _preempt(s: Preemptible, job: Sequence) -> int:
    """Take a sequence's pages; it comes back by itself. Returns the tokens copied away."""
    whole = job in s.decoding
    if whole:
        s.decoding.leave(job)
    else:
        s.prefilling.remove(job)
        s.idle.tokens -= job.target - job.cached
    s.cache.leave(job)
    job.preemptions += 1
    if s.config.preemption == "swap" and whole and s.cache.swap_out(job):
        s.idle.parked.push(job)
        return job.cached
    s.cache.release(job)
    job.lost += job.cached
    job.cached = 0
    job.target = job.request.prompt + job.emitted
    s.idle.wait(job)
    return 0
