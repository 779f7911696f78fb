"""Search the training plans of one slice: structure in loops, degrees on arrays.

The outer loop runs over the parts of the slice and the ways of placing; all meshes and microbatch
counts that `legality.py` allows there are columns of arrays, the same for every program
(`ground.py`). Columns that use the same axes form chunks; for each chunk the choices of layers and
storage are looped over, and what their floors leave is priced at once under all that is left to
choose (`rows.py`). Every candidate's memory, lower, expected and upper seconds come from the
functions that price a single plan.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf, prod

import numpy as np

from shardwise.hardware import Slice, every_part, parts
from shardwise.planner.search.choices import (
    MICROBATCHES,
    Key,
    Rivals,
    Simplicity,
    axes_in_use,
    simple_weights,
)
from shardwise.planner.search.columns import (
    Columns,
)
from shardwise.planner.search.found import (
    STRATEGIES,
    Found,
    SearchReport,
    distinct,
    ideal_seconds,
    rank_of,
    seconds_of,
)
from shardwise.planner.search.ground import LaidOut, places_of
from shardwise.planner.search.leaves import Chunk
from shardwise.planner.search.request import LEVELS, TrainRequest
from shardwise.planner.search.rows import Left, PricedRows, faster_rows, fitting_rows, priced_rows
from shardwise.planner.search.space import (
    Allowed,
    alike,
    batch_units,
    count_legal,
    legal_for,
    policies,
    structures_of,
    tree_of,
    usual_of,
)
from shardwise.plans import MESH_AXES
from shardwise.plans.train import PLACINGS, Placing, Structure

__all__ = [
    "Found",
    "SearchReport",
    "TrainRequest",
    "batch_units",
    "policies",
    "rank_of",
    "search",
    "simplest",
]

_TOGETHER = 16_384  # rows of several structures that are priced at once
_ALTERNATIVES = (
    3  # the simplest plans of a structure: their own stages may move the first ones down
)


def search(
    request: TrainRequest,
    keep: int,
    progress: Callable[[int, int], None] | None = None,
    *,
    exhaustive: bool = False,
) -> SearchReport:
    """All legal plans of the slice; the `keep` best that fit, with distinct meshes.

    Looked at are the whole slice and its parts rounded down; smaller parts only where no mesh on
    these is legal, or where the objective asks for them. `progress` is told how many of how many
    parts are done, also while one is looked at. A legal plan is priced only if no floor shows that
    it is neither among the best nor fits; `exhaustive` prices them all, for the same answer.
    """
    tally = _Tally(request=request, keep=keep, exhaustive=exhaustive)
    looked = _parts_for(request)
    for done, (piece, box) in enumerate(looked):
        if progress:
            tally.tick = partial(progress, done, len(looked))
        tally.look(piece, box)
    if not tally.legal and request.part is None:
        for piece, box in every_part(request.piece):
            tally.look(piece, box)
            if tally.found:
                break
    if progress:
        progress(len(looked), len(looked))
    return tally.report()


def simplest(
    request: TrainRequest, keep: int, known: Simplicity, chips: int = 0
) -> tuple[Found, ...]:
    """Of all plans on so many chips or more that fit, rank before `better_than` and are simpler
    than `known` (`simplicity`) the `keep` simplest, the simplest first, with distinct meshes.
    Meshes are looked at from the fewest axes on, while one may be simpler than what is known; a
    plan is priced only if no floor shows that it is slower.
    """
    tally = _Tally(request=request, keep=keep, exhaustive=False, simplest=known)
    for piece, box in _parts_for(request):
        if prod(box) * piece.count >= chips:
            tally.look(piece, box)
    return tuple(sorted(tally.simple.values(), key=lambda f: f.simplicity(tally.kept))[:keep])


def _parts_for(request: TrainRequest) -> tuple[tuple[Slice, tuple[int, ...]], ...]:
    """Parts of the slice in the order in which they are looked at."""
    if request.part is not None:
        slices, box = request.part
        return ((replace(request.piece, count=slices), box),)
    if request.objective == "time":
        return parts(request.piece)
    if request.objective == "cost":
        return every_part(request.piece)
    return every_part(request.piece)[::-1]


class _Tally:
    def __init__(
        self, *, request: TrainRequest, keep: int, exhaustive: bool, simplest: Simplicity = ()
    ) -> None:
        self.request, self.keep, self.exhaustive = request, keep, exhaustive
        self.simplest = simplest  # known so far, of a search for simple plans
        self.kept = request.with_margin.max_hbm_bytes
        self.structures = structures_of(request)
        self.tree, self.usual = tree_of(self.structures), tree_of(usual_of(self.structures))
        self.started = time.perf_counter()
        self.enumerated = self.legal = self.candidates = 0
        self.found: list[Found] = []
        self.simple: dict[tuple, Found] = {}  # the simplest by mesh
        self.by_choice: dict[Key, Found] = {}
        self.nearest: Found | None = None
        self.unfit: _Look | None = None  # of the largest part looked at
        self.tick: Callable[[], None] = lambda: None  # called now and then

    def look(self, piece: Slice, box: tuple[int, ...]) -> None:
        """Price everything that a part of the slice allows, unless it cannot be better."""
        chips = prod(box) * piece.count
        if self._hopeless(chips):
            return
        request = replace(self.request, piece=piece)
        looked, places = places_of(request, box, self.structures[0])
        self.enumerated += looked * len(self.structures) * len(PLACINGS)
        for place in places:
            index = np.flatnonzero(legal_for(request, place.columns, box))
            for some in self._lots(place.columns, index):
                _Look(self, request, box, place, some).run()

    def _lots(self, columns: Columns, index: np.ndarray) -> Iterator[np.ndarray]:
        """The candidates: all at once, or in a search for simple plans those of the fewest axes
        first, before others those without stages, while one may be simpler than what is known."""
        if not self.simplest:
            yield from [index] if len(index) else []
            return
        n, columns = len(index), columns.take(index)
        axes = np.broadcast_to(axes_in_use(columns.degrees), (n,))
        piped = np.broadcast_to(columns.degrees["stage"] > 1, (n,))
        for count, stages in product(np.flatnonzero(np.bincount(axes)).tolist(), (False, True)):
            used, schedule, microbatches, *_ = self.simplest
            plain = used == count and not any(schedule)
            mine = (axes == count) & (piped == stages)
            if plain:
                mine &= columns.microbatches <= microbatches
            if used < count or (plain and stages):
                return
            if mine.any():
                yield index[mine]

    def simpler(self, found: Found) -> None:
        """Remember the simplest plan of a mesh."""
        at = found.slices, found.box, found.placement, *found.mesh.items()
        known = self.simple.get(at)
        if known is None or found.simplicity(self.kept) < known.simplicity(self.kept):
            self.simple[at] = found
            self.simplest = min(self.simplest, found.simplicity(self.kept))

    def _hopeless(self, chips: int) -> bool:
        """Whether no plan on so few (or, to use few chips, so many) of them can be best."""
        request = self.request
        best = min((f.rank for f in self.found), default=request.better_than)
        if request.objective == "chips":
            return rank_of(request, chips, 0.0) > best
        return rank_of(request, chips, ideal_seconds(request, chips)) > best

    def before(self, chips: int) -> dict[int, float]:
        """Of every strategy found so far, its axes as bits: the seconds at which a plan on so many
        chips ranks like the best of it."""
        best: dict[int, float] = {}
        for f in self.found:
            code = sum(1 << MESH_AXES.index(axis) for axis in f.mesh)
            best[code] = min(best.get(code, inf), seconds_of(self.request, chips, f.rank))
        return best

    def worst_mesh(self, chips: int) -> float:
        """Seconds at which a plan on so many chips ranks like the `keep`-th best mesh so far."""
        best: dict[tuple, float] = {}
        for f in self.found:
            mesh = tuple(f.mesh.items())
            best[mesh] = min(best.get(mesh, inf), seconds_of(self.request, chips, f.rank))
        return _nth(np.array(list(best.values())), self.keep)

    def rival(self, key: Key, found: Found) -> None:
        """Remember the best plan with a value of a choice."""
        known = self.by_choice.get(key)
        if known is None or _compared(found) < _compared(known):
            self.by_choice[key] = found

    def report(self) -> SearchReport:
        """The best first."""
        self.found.sort(key=lambda f: f.rank)
        if not self.found and self.unfit is not None and self.request.better_than == inf:
            self.unfit.find_nearest()
        return SearchReport(
            enumerated=self.enumerated,
            legal=self.legal,
            candidates=self.candidates,
            seconds=time.perf_counter() - self.started,
            best=distinct(self.found, self.keep),
            by_choice=self.by_choice,
            nearest=None if self.found else self.nearest,
        )


def _compared(found: Found) -> float:
    """The rank by which plans of one value of a choice are compared (`choices.py`)."""
    return found.rank * simple_weights(len(found.mesh))


def _together(each: Iterable[Left]) -> Iterator[list[Left]]:
    """In lots of so many rows as are priced at once."""
    lot: list[Left] = []
    rows = 0
    for left in each:
        if not len(left.at):
            continue
        if (rows := rows + len(left.at)) > _TOGETHER and lot:
            yield lot
            lot, rows = [], len(left.at)
        lot.append(left)
    if lot:
        yield lot


def _nth(values: np.ndarray, n: int) -> float:
    """The n-th smallest; infinite where there are fewer."""
    return float(np.partition(values, n - 1)[n - 1]) if len(values) >= n else inf


class _Look:
    """All candidates of one part of the slice, laid out in one way.

    A candidate's structures are priced only while they could still be among the answers: `limit`
    is what the seconds of one must stay below, by what is already found, and the floors of
    `composition.py` are what none of the choices still open can go below.
    """

    def __init__(
        self,
        tally: _Tally,
        request: TrainRequest,
        box: tuple[int, ...],
        place: LaidOut,
        index: np.ndarray,
    ) -> None:
        self.tally, self.request, self.box = tally, request, box
        self.placing: Placing = place.placing
        self.columns, self.parts, self.index = place.columns, place.parts, index
        self.tree, self.usual = tally.tree, tally.usual
        self.structures: list[Structure] = []
        columns, n = self.columns, len(self.columns)
        self.seconds, self.memory = np.full(n, inf), np.full(n, inf)
        self.chips = prod(box) * request.piece.count
        self.most = seconds_of(request, self.chips, request.better_than)
        self.limit = np.full(n, self.most)
        self.chosen = np.zeros(n, np.int64)
        self.rivals = Rivals(columns.degrees, request.searched)
        used = sum((d > 1).astype(int) << i for i, d in enumerate(columns.degrees.values()))
        codes, self.strategy = np.unique(np.broadcast_to(used, (n,)), return_inverse=True)
        self.strategies = codes.tolist()

    def run(self) -> None:
        """Price everything, and hand the best to the tally: the usual structures first, so that
        most of the others need not be looked at."""
        chunks = list(alike(self.columns, self.index))
        if not self.tally.exhaustive and not self.tally.simplest:
            for chunk in chunks:
                self._chunk(chunk, self.usual, counted=False)
            self._tighten()
        for chunk in chunks:
            self._chunk(chunk, self.tree, counted=True)
            self._tighten()
        if self.tally.simplest:
            return
        self._keep_best()
        unfit = self.tally.unfit
        if unfit is None or unfit.chips <= self.chips:
            self.tally.unfit = self

    def _tighten(self) -> None:
        """Set for every candidate the seconds that it must stay below to be among the answers.

            limit = max(m, min(s_own, s_6))
            m      seconds of the `keep`-th best mesh found so far
            s_own  the best found with the candidate's strategy (its set of mesh axes in use)
            s_6    the best of the sixth best strategy (`STRATEGIES`)

        The answers are the `keep` best meshes, and the best plan of each of the six best
        strategies. At or above m a candidate is none of the former. At or above s_own it is not the
        best of its strategy; at or above s_6 its strategy is not among the six. So whatever has a
        floor of at least the limit need not be priced. Seconds that are found only fall, and limits
        with them: what was left out earlier would be left out again.
        """
        if self.tally.exhaustive or self.tally.simplest:
            return
        by_strategy = np.full(len(self.strategies), inf)
        np.minimum.at(by_strategy, self.strategy, self.seconds)
        by_mesh = np.full(self.columns.mesh.max() + 1, inf)
        np.minimum.at(by_mesh, self.columns.mesh, self.seconds)
        before = self.tally.before(self.chips)
        elsewhere = np.array([before.get(code, inf) for code in self.strategies])
        own = np.minimum(by_strategy, elsewhere)
        others = [s for code, s in before.items() if code not in self.strategies]
        sixth = _nth(np.append(own, others), STRATEGIES)
        # Of this part of the slice, and of the parts before: either bounds the best of both.
        mesh = min(_nth(by_mesh, self.tally.keep), self.tally.worst_mesh(self.chips))
        self.limit = np.minimum(np.maximum(mesh, np.minimum(own, sixth)[self.strategy]), self.most)

    def _chunk(self, index: np.ndarray, tree: dict, counted: bool) -> None:
        """All structures of some candidates. What no floor leaves out is put together, and priced
        under all schedules at once."""
        columns = self.columns.take(index)
        allowed = Allowed(self.request, columns, self.box)
        if counted and not self.tally.simplest:
            self.tally.legal += count_legal(allowed, self.tree)
        for waiting in _together(self._alive(index, tree, allowed)):
            self._price(index, waiting, allowed, counted)

    def _alive(self, index: np.ndarray, tree: dict, allowed: Allowed) -> Iterator[Left]:
        """What no floor leaves out of a chunk, under each structure but for the schedule."""
        for stored in _together(self._near(index, tree, allowed)):
            self.tally.tick()
            for left in stored if self.tally.exhaustive else self._floored(index, stored):
                for zero, schedules in left.below.items():
                    if (by_zero := allowed(zero, 2)) is not None:
                        yield Left(left.at[by_zero[left.at]], zero, schedules)

    def _floored(self, index: np.ndarray, stored: Sequence[Left]) -> list[Left]:
        """Of candidates with a choice of layers and storage those of which no floor shows that they
        do not fit or are too slow, whatever is left to choose."""
        stored = fitting_rows(self.parts, index, stored, self.request.max_hbm_bytes)
        limit = self._limit
        return stored if limit is None else faster_rows(self.parts, index, stored, limit)

    def _near(self, index: np.ndarray, tree: dict, allowed: Allowed) -> Iterator[Left]:
        """The legal candidates of a chunk under each choice of layers and storage; not those whose
        layers alone are too slow."""
        stages, limit = bool(self.columns.degrees["stage"][index[0]] > 1), self._limit
        for layer, storages in tree.items():
            near = allowed(layer, 0)
            if near is None:
                continue
            if limit is not None:
                near = near & (self.parts.layer_floor(layer, index, stages) < limit[index])
            for storage, zeros in storages.items():
                if (by_storage := allowed(storage, 1)) is not None:
                    yield Left(np.flatnonzero(near & by_storage), storage, zeros)

    @property
    def _limit(self) -> np.ndarray | None:
        """The limits; None where everything is priced, or nothing is known that could be one."""
        none = self.tally.exhaustive or not np.isfinite(self.limit).any()
        return None if none else self.limit

    def _price(
        self, index: np.ndarray, waiting: Sequence[Left], allowed: Allowed, counted: bool
    ) -> None:
        """Price what is left of a chunk, and keep what is better than the best structure of its
        candidate so far; of equals the first."""
        rows = priced_rows(self.parts, index, waiting, allowed, self._limit)
        if rows is None:
            return
        if counted:
            self.tally.candidates += int(np.count_nonzero(rows.legal))
        fits = rows.legal & (rows.memory <= self.request.max_hbm_bytes)
        fitting = np.where(fits & (rows.seconds < self.most), rows.seconds, inf)
        if self.tally.simplest:
            self._see_simple(rows, fitting)
        elif fits.any():
            self.rivals.see(rows, fitting)
            self._see_best(rows, fitting)
        else:
            memory = np.where(rows.legal, rows.memory, inf)
            row, last = rows.first(memory == memory.min())
            self._see_lean(int(rows.index[row]), rows.structure(row, last), memory[row, last])

    def _see_best(self, rows: PricedRows, seconds: np.ndarray) -> None:
        """Remember the best structure of each candidate."""
        row, last = rows.best(seconds, self.seconds)
        at, many = rows.index[row], len(rows.structures)
        self.seconds[at], self.memory[at] = rows.seconds[row, last], rows.memory[row, last]
        made, chosen = np.unique(rows.which[row] * many + last, return_inverse=True)
        self.chosen[at] = len(self.structures) + chosen
        self.structures += [rows.structures[i % many][i // many] for i in made.tolist()]

    def _see_simple(self, rows: PricedRows, seconds: np.ndarray) -> None:
        """Remember the simplest candidates of each structure, all of as many axes; infinite seconds
        are no plan."""
        counts, kept = self.columns.microbatches, self.tally.kept
        for row, last in rows.simplest(seconds, counts, kept, _ALTERNATIVES):
            figures = float(rows.seconds[row, last]), float(rows.memory[row, last])
            found = self._found(int(rows.index[row]), rows.structure(row, last), *figures)
            self.tally.simpler(found)

    def _see_lean(self, i: int, structure: Structure, memory: float) -> None:
        """Remember the candidate that comes nearest to fitting."""
        nearest = self.tally.nearest
        if nearest is None or memory < nearest.memory:
            self.tally.nearest = self._found(i, structure, inf, float(memory))

    def find_nearest(self) -> None:
        """The leanest plan where floors left out all: memory alone, of every structure."""
        for index in alike(self.columns, self.index):
            chunk = Chunk(self.parts, index)
            allowed = Allowed(self.request, chunk.columns, self.box)
            for layer, storages in self.tree.items():
                for storage, zeros in storages.items():
                    for zero, schedules in zeros.items():
                        for last in schedules:
                            levels = enumerate((layer, storage, zero, last))
                            masks = [m for i, s in levels if (m := allowed(s, i)) is not None]
                            if len(masks) == len(LEVELS):
                                legal = np.logical_and.reduce(masks)
                                memory = np.where(legal, chunk.memory(last), inf)
                                i = int(np.argmin(memory))
                                self._see_lean(int(index[i]), last, memory[i])

    def _keep_best(self) -> None:
        """The best meshes, and the best one of every strategy."""
        fitting = np.flatnonzero(np.isfinite(self.seconds))
        order = fitting[np.argsort(self.seconds[fitting], kind="stable")]
        kept: set[int] = set()
        for what, most in ((self.columns.mesh, self.tally.keep), (self.strategy, len(order))):
            _, first = np.unique(what[order], return_index=True)
            kept.update(order[np.sort(first)[:most]].tolist())
        for i in sorted(kept):
            structure = self.structures[self.chosen[i]]
            figures = float(self.seconds[i]), float(self.memory[i])
            self.tally.found.append(self._found(i, structure, *figures))
        self._keep_rivals(fitting)

    def _keep_rivals(self, fitting: np.ndarray) -> None:
        """The best plan of every value of each choice, of the candidates that fit."""
        for key, seen in self.rivals.best.items():
            self.tally.rival(key, self._found(seen.at, seen.structure, seen.seconds, seen.memory))
        order = fitting[np.argsort((self.seconds * self.rivals.weights)[fitting], kind="stable")]
        counts, first = np.unique(self.columns.microbatches[order], return_index=True)
        for count, i in zip(counts.tolist(), order[first].tolist(), strict=True):
            figures = float(self.seconds[i]), float(self.memory[i])
            found = self._found(i, self.structures[self.chosen[i]], *figures)
            self.tally.rival((MICROBATCHES, count), found)

    def _found(self, i: int, structure: Structure, seconds: float, memory: float) -> Found:
        mesh = {axis: int(d[i]) for axis, d in self.columns.degrees.items() if d[i] > 1}
        chips = prod(self.box) * self.request.piece.count
        return Found(
            slices=self.request.piece.count,
            box=self.box,
            placement=self.placing,
            mesh=mesh,
            microbatches=int(self.columns.microbatches[i]),
            structure=structure,
            seconds=seconds,
            memory=memory,
            rank=float(rank_of(self.request, chips, seconds)),
        )
