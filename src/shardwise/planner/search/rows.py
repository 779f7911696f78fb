"""Rows of a search: candidates, each under structures of its own, priced under all schedules at
once.

A row is a candidate under the choices of a structure but for the schedule. What many structures
leave of a few candidates each is one array, and seconds and bytes are tables of rows x schedules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.planner.price.composition import Reduced, Stored
from shardwise.planner.search.leaves import Chunk, Mix, StepParts
from shardwise.planner.search.space import Allowed
from shardwise.plans.train import Structure
from shardwise.scheduling.pipeline import PLAIN


@dataclass(frozen=True, slots=True)
class Left:
    """Candidates that no floor leaves out under a structure, by their places in a chunk, and what
    is left to choose: the schedules, or the ZeRO stages with theirs."""

    at: np.ndarray
    structure: Structure
    below: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRows:
    """Rows with their tables: `which` is each one's structure, by its number; `structures` are all
    of them by schedule and number; `legal` says where a table's entry is a plan."""

    index: np.ndarray
    which: np.ndarray
    structures: tuple[dict[int, Structure], ...]
    legal: np.ndarray
    seconds: np.ndarray
    memory: np.ndarray

    def structure(self, row: int, last: int) -> Structure:
        """The structure of an entry."""
        return self.structures[last][int(self.which[row])]

    def by_value(self, field: str) -> dict[Any, np.ndarray]:
        """The values of a choice: by number of the structure and by schedule, which has each."""
        found: dict[Any, np.ndarray] = {}
        shape = int(self.which.max()) + 1, len(self.structures)
        for number in range(shape[0]):
            for last, structures in enumerate(self.structures):
                if number in structures:
                    value = getattr(structures[number], field)
                    found.setdefault(value, np.zeros(shape, bool))[number, last] = True
        return found

    def first(self, entries: np.ndarray) -> tuple[int, int]:
        """The first of the entries of a mask, in the order of structures, schedules, candidates."""
        row, last = np.nonzero(entries)
        i = np.lexsort((row, last, self.which[row]))[0]
        return int(row[i]), int(last[i])

    def best(self, seconds: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each candidate the fastest entry, where that is faster than what is known of it; of
        equals the first."""
        row, last = np.nonzero(seconds < known[self.index][:, None])
        order = np.lexsort((last, self.which[row], seconds[row, last], self.index[row]))
        row, last = row[order], last[order]
        new = np.diff(self.index[row], prepend=-1) != 0
        return row[new], last[new]

    def simplest(
        self, seconds: np.ndarray, microbatches: np.ndarray, kept: float, many: int
    ) -> list[tuple[int, int]]:
        """Of each structure the entries of finite seconds that are simplest (`choices.py`), so many
        of them; `kept` bytes keep the margin."""
        row, last = np.nonzero(np.isfinite(seconds))
        beyond = np.maximum(self.memory[row, last] - kept, 0)
        group = self.which[row] * len(self.structures) + last
        counts = microbatches[self.index[row]]
        order = np.lexsort((row, seconds[row, last], beyond, counts, group))
        row, last, group = row[order], last[order], group[order]
        among = np.arange(len(group)) - np.searchsorted(group, group)
        return list(zip(row[among < many].tolist(), last[among < many].tolist(), strict=True))


def fitting_rows(
    parts: StepParts, index: np.ndarray, stored: Sequence[Left], most: float
) -> list[Left]:
    """What needs at most so many bytes of what is left of a chunk, whatever ZeRO stage and schedule
    are chosen: with ZeRO-2, and with the plain schedule, which has the fewest microbatches in
    flight and both ends apart; and with all that a compiler may spare."""
    if not stored:
        return []
    at, which = _rows_of(stored)
    least = tuple(replace(each.structure, zero=2) for each in stored)
    last = replace(least[0], pipeline_schedule=PLAIN, virtual_stages=1)
    return _kept(
        stored, at, which, Chunk(parts, index[at], Mix(least, which)).memory(last, 0.0) <= most
    )


def faster_rows(
    parts: StepParts, index: np.ndarray, stored: Sequence[Left], limit: np.ndarray
) -> list[Left]:
    """What takes less than the limit of its candidate of what is left of a chunk, whatever ZeRO
    stage and schedule are chosen."""
    if not stored:
        return []
    at, which = _rows_of(stored)
    made = tuple(each.structure for each in stored)
    floor = Stored(Chunk(parts, index[at], Mix(made, which)).steps(), made[0]).floor()
    return _kept(stored, at, which, np.asarray(floor) < limit[index[at]])


def _rows_of(some: Sequence[Left]) -> tuple[np.ndarray, np.ndarray]:
    """Of every row its candidate's place in the chunk, and the number of its structure."""
    counts = [len(each.at) for each in some]
    return np.concatenate([each.at for each in some]), np.repeat(np.arange(len(some)), counts)


def _kept(some: Sequence[Left], at: np.ndarray, which: np.ndarray, kept: np.ndarray) -> list[Left]:
    """The rows of a mask."""
    ends = np.searchsorted(which[kept], np.arange(1, len(some)))
    left = zip(some, np.split(at[kept], ends), strict=True)
    return [replace(each, at=mine) for each, mine in left if len(mine)]


def priced_rows(
    parts: StepParts,
    index: np.ndarray,
    waiting: Sequence[Left],
    allowed: Allowed,
    limit: np.ndarray | None,
) -> PricedRows | None:
    """What is left of the chunk of candidates at an index, under all schedules; None where nothing
    is. A row whose floor is not below the `limit` of its candidate is left out."""
    waiting = [each for each in waiting if len(each.at)]
    if not waiting:
        return None
    at, which = _rows_of(waiting)
    chunk, reduced = _reduced(parts, index[at], waiting, which)
    if limit is not None:
        alive = reduced.floor() < limit[chunk.index]
        if not alive.any():
            return None
        if not alive.all():
            at, which = at[alive], which[alive]
            chunk, reduced = _reduced(parts, index[at], waiting, which)
    found = []
    for structures in _by_schedule(waiting):
        legal = _legal(structures, at, which, allowed)
        if legal.any():
            last = next(iter(structures.values()))
            seconds = np.broadcast_to(reduced.seconds(last).expected, legal.shape)
            found.append((structures, legal, seconds, chunk.memory(last)))
    if not found:
        return None
    structures, *tables = zip(*found, strict=True)
    legal, seconds, memory = (np.stack(table, axis=1) for table in tables)
    return PricedRows(
        index=chunk.index,
        which=which,
        structures=structures,
        legal=legal,
        seconds=seconds,
        memory=memory,
    )


def _reduced(
    parts: StepParts, index: np.ndarray, waiting: Sequence[Left], which: np.ndarray
) -> tuple[Chunk, Reduced]:
    """PricedRows as a chunk, and as steps that lack a schedule alone."""
    made = tuple(each.structure for each in waiting)
    chunk = Chunk(parts, index, Mix(made, which))
    return chunk, Reduced(Stored(chunk.steps(), made[0]), made[0])


def _by_schedule(waiting: Sequence[Left]) -> list[dict[int, Structure]]:
    found: dict[tuple[str, int], dict[int, Structure]] = {}
    for number, each in enumerate(waiting):
        for last in each.below:
            schedule = last.pipeline_schedule, last.virtual_stages
            found.setdefault(schedule, {})[number] = last
    return list(found.values())


def _legal(
    structures: dict[int, Structure], at: np.ndarray, which: np.ndarray, allowed: Allowed
) -> np.ndarray:
    """For which rows, candidates of a chunk by their places in it, a schedule is legal."""
    legal = np.zeros(len(at), bool)
    for number, last in structures.items():
        start, end = np.searchsorted(which, (number, number + 1))
        if start < end and (mask := allowed(last, 3)) is not None:
            legal[start:end] = mask[at[start:end]]
    return legal
