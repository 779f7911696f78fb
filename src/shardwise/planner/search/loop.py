"""Search the training plans of one slice: structure in loops, degrees on arrays.

The outer loop runs over the parts of the slice and the ways of placing; all meshes and microbatch
counts that `legality.py` allows there are columns of arrays. Columns that use the same axes form
chunks; for each chunk the structural choices are looped over, innermost the cheapest
(`composition.py`). Every candidate's memory, lower, expected and upper seconds come from the
functions that price a single plan.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf, prod

import numpy as np

from shardwise.hardware import Slice, every_part, parts
from shardwise.planner.price.composition import Reduced, Seconds, Stored
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
    Meshes,
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
from shardwise.planner.search.leaves import Chunk, StepParts
from shardwise.planner.search.request import LEVELS, TrainRequest
from shardwise.planner.search.space import (
    alike,
    batch_units,
    candidates_of,
    count_legal,
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

_SPARSE = 0.7  # a chunk of which less is still of interest is made smaller
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
    """What a search has seen so far."""

    def __init__(
        self, *, request: TrainRequest, keep: int, exhaustive: bool, simplest: Simplicity = ()
    ) -> None:
        self.request, self.keep, self.exhaustive = request, keep, exhaustive
        self.simplest = simplest  # known so far, of a search for simple plans
        self.kept = request.with_margin.max_hbm_bytes
        self.structures = structures_of(request)
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
        looked, meshes, columns = candidates_of(request, box)
        self.enumerated += looked * len(self.structures) * len(PLACINGS)
        for placing, laid in meshes.items():
            mine = columns.take(laid.which[columns.mesh] >= 0)
            mine = replace(mine, mesh=laid.which[mine.mesh])
            for some in self._lots(mine):
                _Look(self, request, box, placing, laid.meshes, some, self.structures).run()

    def _lots(self, columns: Columns) -> Iterator[Columns]:
        """The candidates: all at once, or in a search for simple plans those of the fewest axes
        first, before others those without stages, while one may be simpler than what is known."""
        if not self.simplest:
            yield from [columns] if len(columns) else []
            return
        n = len(columns)
        axes = np.broadcast_to(axes_in_use(columns.degrees), (n,))
        piped = np.broadcast_to(columns.degrees["stage"] > 1, (n,))
        for count, stages in product(np.unique(axes).tolist(), (False, True)):
            used, schedule, microbatches, *_ = self.simplest
            plain = used == count and not any(schedule)
            mine = (axes == count) & (piped == stages)
            if plain:
                mine &= columns.microbatches <= microbatches
            if used < count or (plain and stages):
                return
            if mine.any():
                yield columns.take(mine)

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
        placing: Placing,
        meshes: Meshes,
        columns: Columns,
        structures: tuple[Structure, ...],
    ) -> None:
        self.tally, self.request, self.box = tally, request, box
        self.placing: Placing = placing
        self.columns = columns
        self.parts = StepParts(request, meshes, columns, structures[0], box)
        self.tree, self.usual = tree_of(structures), tree_of(usual_of(structures))
        self.structures: list[Structure] = []
        n = len(columns)
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
        chunks = [Chunk(self.parts, index) for index in alike(self.columns)]
        for chunk in chunks if not self.tally.simplest else ():
            self.tally.legal += count_legal(chunk.allowed, self.tree)
        if not self.tally.exhaustive and not self.tally.simplest:
            for chunk in chunks:
                self._chunk(chunk, self.usual, counted=False)
            self._tighten()
        while chunks:  # none is kept: what it has gathered is no longer needed
            self._chunk(chunks.pop(0), self.tree, counted=True)
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

    def _chunk(self, chunk: Chunk, tree: dict, counted: bool) -> None:
        allowed = chunk.allowed
        for layer, storages in tree.items():
            if (by_layer := allowed(layer, 0)) is None:
                continue
            for storage, zeros in storages.items():
                by_storage = allowed(storage, 1)
                if by_storage is not None and (legal := by_layer & by_storage).any():
                    self.tally.tick()
                    self._stored(chunk, storage, zeros, legal, counted)

    def _stored(
        self, chunk: Chunk, storage: Structure, zeros: dict, legal: np.ndarray, counted: bool
    ) -> None:
        """One choice of layers and storage with all that is left to choose."""
        chunk, alive = self._dense(chunk, legal)
        if not self.tally.exhaustive:
            fits = chunk.least_memory(storage) <= self.request.max_hbm_bytes
            chunk, alive = self._dense(chunk, alive & fits)
            if not alive.any():
                return
        stored = Stored(chunk.steps, storage)
        if not self.tally.exhaustive:
            dense, alive = self._dense(chunk, alive & (stored.floor() < self.limit[chunk.index]))
            if not alive.any():
                return
            if dense is not chunk:
                chunk, stored = dense, Stored(dense.steps, storage)
        allowed = chunk.allowed
        for zero, schedules in zeros.items():
            if (by_zero := allowed(zero, 2)) is not None and (mine := alive & by_zero).any():
                self._reduced(chunk, stored, zero, schedules, mine, counted)

    def _reduced(
        self,
        chunk: Chunk,
        stored: Stored,
        zero: Structure,
        schedules: list[Structure],
        legal: np.ndarray,
        counted: bool,
    ) -> None:
        """One choice of the ZeRO stage, under all schedules."""
        chunk, legal = self._dense(chunk, legal)
        same = chunk.steps is stored.steps
        reduced = Reduced(stored if same else Stored(chunk.steps, zero), zero)
        if not self.tally.exhaustive:
            dense, legal = self._dense(chunk, legal & (reduced.floor() < self.limit[chunk.index]))
            if not legal.any():
                return
            if dense is not chunk:
                chunk, reduced = dense, Reduced(Stored(dense.steps, zero), zero)
        allowed = chunk.allowed
        for last in schedules:
            by_schedule = allowed(last, 3)
            if by_schedule is not None and (mine := legal & by_schedule).any():
                self._count(chunk, last, reduced.seconds(last), mine, counted)

    def _dense(self, chunk: Chunk, alive: np.ndarray) -> tuple[Chunk, np.ndarray]:
        """The chunk, or a smaller one where few of its candidates are alive."""
        many = np.count_nonzero(alive)
        if not many or many > _SPARSE * len(chunk):
            return chunk, alive
        return Chunk(self.parts, chunk.index[alive]), np.ones(many, bool)

    def _count(
        self,
        chunk: Chunk,
        structure: Structure,
        priced: Seconds,
        legal: np.ndarray,
        counted: bool,
    ) -> None:
        """Keep what is better than the best structure of its candidate so far."""
        index, memory = chunk.index, chunk.memory(structure)
        if counted:
            self.tally.candidates += int(np.count_nonzero(legal))
        fits = legal & (memory <= self.request.max_hbm_bytes)
        expected = np.asarray(priced.expected)
        fitting = np.where(fits & (expected < self.most), expected, inf)
        if self.tally.simplest:
            self._see_simple(index, structure, fitting, memory)
            return
        self.rivals.see(index, structure, fitting, memory)
        better = fitting < self.seconds[index]
        if better.any():
            at = index[better]
            self.seconds[at], self.memory[at] = expected[better], memory[better]
            self.chosen[at] = len(self.structures)
            self.structures.append(structure)
        elif not fits.any():
            self._leanest(chunk, structure, memory, legal)

    def _see_simple(
        self, index: np.ndarray, structure: Structure, seconds: np.ndarray, memory: np.ndarray
    ) -> None:
        """Remember the simplest of the candidates at `index`, all of one structure and of as many
        axes; infinite seconds are no plan."""
        at = np.flatnonzero(np.isfinite(seconds))
        counts, beyond = self.columns.microbatches[index[at]], memory[at] - self.tally.kept
        for i in at[np.lexsort((seconds[at], np.maximum(beyond, 0), counts))[:_ALTERNATIVES]]:
            figures = float(seconds[i]), float(memory[i])
            self.tally.simpler(self._found(int(index[i]), structure, *figures))

    def _leanest(
        self, chunk: Chunk, structure: Structure, memory: np.ndarray, legal: np.ndarray
    ) -> None:
        """Remember the candidate that comes nearest to fitting."""
        memory = np.where(legal, memory, inf)
        i = int(np.argmin(memory))
        nearest = self.tally.nearest
        if nearest is None or memory[i] < nearest.memory:
            self.tally.nearest = self._found(int(chunk.index[i]), structure, inf, float(memory[i]))

    def find_nearest(self) -> None:
        """The leanest plan where floors left out all: memory alone, of every structure."""
        for index in alike(self.columns):
            chunk = Chunk(self.parts, index)
            allowed = chunk.allowed
            for layer, storages in self.tree.items():
                for storage, zeros in storages.items():
                    for zero, schedules in zeros.items():
                        for last in schedules:
                            levels = enumerate((layer, storage, zero, last))
                            masks = [m for i, s in levels if (m := allowed(s, i)) is not None]
                            if len(masks) == len(LEVELS):
                                legal = np.logical_and.reduce(masks)
                                self._leanest(chunk, last, chunk.memory(last), legal)

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
