"""What a search of training plans looks at on one part of the slice: candidates, structures, rules.

Candidates are meshes times microbatch counts, as columns; structures are the choices that change
what is counted, as a tree of four levels in the order in which the search's loops choose them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from shardwise.hardware import parts, place
from shardwise.models.remat import RematPolicy, remat_row
from shardwise.planner.search.columns import (
    Columns,
    Meshes,
    divisors,
    factorisations,
    laid_out,
    link_columns,
    with_microbatches,
)
from shardwise.planner.search.legality import (
    MAX_MICROBATCHES,
    STRUCTURE_RULES,
    batch_shards,
    columns_for,
    legal_columns,
    legal_meshes,
    limits_of,
    pinned_exactly,
    usual_value,
)
from shardwise.planner.search.request import LEVELS, TrainRequest
from shardwise.plans import MESH_AXES
from shardwise.plans.software import Limit
from shardwise.plans.stacks import Reduces
from shardwise.plans.train import Placing, Structure
from shardwise.scheduling.pipeline import PLAIN, PipelineKind, schedule_row
from shardwise.work import Quantity

_CHUNK = 16_384  # candidates put together at once; larger arrays fall out of the cache


@dataclass(frozen=True, slots=True)
class Laid:
    """Meshes as one placing lays them out; `which[i]` is where mesh i stands there, or -1."""

    meshes: Meshes
    which: np.ndarray


def candidates_of(
    request: TrainRequest, box: tuple[int, ...]
) -> tuple[int, dict[Placing, Laid], Columns]:
    """How many meshes x microbatches were enumerated, the legal meshes as each placing lays them
    out where that makes a difference, and the candidates on them."""
    looked, degrees = _meshes(request, box)
    shards = batch_shards(degrees)
    even = request.sequences % shards == 0
    degrees = {axis: d[even] for axis, d in degrees.items()}
    counts = microbatch_counts(request)
    columns = with_microbatches(degrees, counts, request.sequences // shards[even])
    columns = columns.take(legal_columns(request, columns))
    if not len(columns):
        return looked * len(counts), {}, columns
    laid = _lay_out(request, degrees, box)
    placed = np.zeros(len(shards[even]), bool)
    for some in laid.values():
        placed |= some.which >= 0
    return looked * len(counts), laid, columns.take(placed[columns.mesh])


def _meshes(request: TrainRequest, box: tuple[int, ...]) -> tuple[int, dict[str, np.ndarray]]:
    """How many ways there are to write the box's devices as a mesh, and the legal ones."""
    devices = prod(box) * request.piece.count * request.piece.chip.jax_devices_per_chip
    looked, degrees = factorisations(devices, MESH_AXES, lambda d: legal_meshes(request, d))
    pinned = pinned_exactly(request, degrees)
    return looked, {axis: d[pinned] for axis, d in degrees.items()}


def _lay_out(
    request: TrainRequest, degrees: dict[str, np.ndarray], box: tuple[int, ...]
) -> dict[Placing, Laid]:
    """Every placing's meshes, those left out that an earlier one lays on the same links."""
    laid: dict[Placing, Laid] = {}
    n = len(degrees["tensor"])
    before: np.ndarray | None = None
    for placing in request.placings:
        placement = place(request.piece, degrees, box=box, finish=placing == "finish")
        legal = np.broadcast_to(placement.legal, (n,))
        links = np.stack([row for a in degrees for row in link_columns(placement.axes[a], n)])
        new = legal if before is None else legal & (links != before).any(axis=0)
        before = links
        if new.any():
            kept = np.flatnonzero(new)
            which = np.full(n, -1)
            which[kept] = np.arange(len(kept))
            laid[placing] = Laid(laid_out(degrees, placement).take(kept), which)
    return laid


def microbatch_counts(request: TrainRequest) -> list[int]:
    """Numbers of microbatches to look at: divisors of the batch, or those that were asked for."""
    if request.microbatches:
        return sorted(request.microbatches)
    return [n for n in divisors(request.sequences) if n <= MAX_MICROBATCHES]


def batch_units(request: TrainRequest) -> np.ndarray:
    """What a batch may be a multiple of: batch shards x microbatches of every mesh that is legal
    but for the batch, on the slice and its parts rounded down."""
    units = []
    for piece, box in parts(request.piece):
        part = replace(request, piece=piece)
        _, degrees = _meshes(part, box)
        if len(degrees["tensor"]):
            placed = np.zeros(len(degrees["tensor"]), bool)
            for some in _lay_out(part, degrees, box).values():
                placed |= some.which >= 0
            stages = degrees["stage"][placed]
            units.append((batch_shards(degrees)[placed] * stages)[:, None] * _POWERS)
    return np.unique(np.concatenate([u.ravel() for u in units])) if units else np.zeros(0, int)


_POWERS = 2 ** np.arange(10)


def structures_of(request: TrainRequest) -> tuple[Structure, ...]:
    """Every structural choice, whether it makes a difference or not."""
    tried = {**request.searched, "remat": policies(request), "gradient_reduce": reduces(request)}
    tried = {name: spoken(request, name, values) for name, values in tried.items()}
    schedules = _schedules(tried.pop(_SCHEDULE))
    if request.chunks:
        schedules = [(kind, chunks) for kind, chunks in schedules if chunks in request.chunks]
    return _combined(request.structure, tuple(tried.items()), tuple(schedules))


@lru_cache(maxsize=8)  # the search for a program's best plans and that for its simplest ones
def _combined(
    structure: Structure,
    tried: tuple[tuple[str, tuple], ...],
    schedules: tuple[tuple[PipelineKind, int], ...],
) -> tuple[Structure, ...]:
    """A structure with every combination of values."""
    names = [name for name, _ in tried]
    return tuple(
        replace(
            structure,
            pipeline_schedule=kind,
            virtual_stages=chunks,
            **dict(zip(names, values, strict=True)),
        )
        for *values, (kind, chunks) in product(*(values for _, values in tried), schedules)
    )


def spoken(request: TrainRequest, name: str, values: tuple) -> tuple:
    """The values of a choice that the software has a word for, and the usual one, which stands
    where the choice makes no difference."""
    words = request.software.words.get(name) if request.software else None
    return tuple(
        v for v in values if words is None or v in words or v == usual_value(request, name)
    )


def policies(request: TrainRequest) -> tuple[RematPolicy, ...]:
    """The remat policies to look at: one that offloads only where the host link is known, or where
    it is the only one."""
    tried = request.searched["remat"]
    if request.piece.chip.host_link_oneway is not None or len(tried) == 1:
        return tried
    return tuple(remat for remat in tried if not remat_row(remat).offloads)


def reduces(request: TrainRequest) -> tuple[Reduces, ...]:
    """How often gradients may be reduced: as the software does it, or as it was asked for."""
    tried = request.searched["gradient_reduce"]
    if len(tried) == 1:
        return tried
    return tuple(dict.fromkeys((tried[0], request.structure.stack_row.piped_reduce)))


def _schedules(kinds: tuple[PipelineKind, ...]) -> list[tuple[PipelineKind, int]]:
    chosen: list = [(kind, chunks) for kind in kinds for chunks in schedule_row(kind).chunks]
    # Without stages every schedule is a loop over microbatches in one chunk.
    if all(chunks > 1 for _, chunks in chosen):
        chosen.insert(0, (chosen[0][0], 1))
    return chosen


_SCHEDULE = "pipeline_schedule"
_FIELDS = [(*level, *(["virtual_stages"] if _SCHEDULE in level else [])) for level in LEVELS]
"""The fields of a structure that each level chooses."""


def legal_for(request: TrainRequest, columns: Columns, box: tuple[int, ...]) -> np.ndarray:
    """Candidates that break no limit of the software about degrees and microbatches alone."""
    kept = np.ones(len(columns), bool)
    for limit in limits_of(request):
        if not limit.about:
            kept &= limit.mask(columns_for(request, columns, request.structure, box))
    return kept


def alike(columns: Columns, index: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of candidates on which the same choices make a difference, so many at once as stay
    in cache."""
    d = columns.degrees
    flags = [d["stage"] > 1, d["replica"] * d["data"] > 1]
    alike = np.asarray(sum(flag.astype(int) << i for i, flag in enumerate(flags)))[index]
    for code in np.flatnonzero(np.bincount(alike)):
        some = index[alike == code]
        yield from np.array_split(some, -(-len(some) // _CHUNK))


def usual_of(structures: tuple[Structure, ...]) -> tuple[Structure, ...]:
    """One structure per remat policy: where they can be, the defaults of a plan."""
    found: dict[str, Structure] = {}
    for s in structures:
        odd = (s.zero != 1) + (s.pipeline_schedule != PLAIN) + (s.weight_gather != "per_pass")
        if s.remat not in found or odd == 0:
            found.setdefault(s.remat, s)
            if odd == 0 and found[s.remat].zero != 1:
                found[s.remat] = s
    return tuple(found.values())


def count_legal(allowed: "Allowed", tree: dict) -> int:
    """Legal plans of a chunk: the rules of a level are about the choices of that level and the
    storage alone, so that the choices multiply."""
    layers = sum(_as_int(allowed(layer, 0)) for layer in tree)
    storages = next(iter(tree.values()))
    stored = sum(
        _as_int(allowed(storage, 1)) * sum(_as_int(allowed(zero, 2)) for zero in zeros)
        for storage, zeros in storages.items()
    )
    schedules = next(iter(next(iter(storages.values())).values()))
    return int(np.sum(layers * stored * sum(_as_int(allowed(last, 3)) for last in schedules)))


def _as_int(mask: np.ndarray | None) -> Quantity:
    return 0 if mask is None else mask.astype(np.int64)


def tree_of(structures: tuple[Structure, ...]) -> dict:
    """Structures by level of the loops: {layer: {storage: {zero: (schedules)}}}, each named by the
    first structure below it."""
    tree: dict = {}
    first: dict[tuple, Structure] = {}

    def key(structure: Structure, level: int) -> Structure:
        fields = [name for names in _FIELDS[: level + 1] for name in names]
        values = (level, *(getattr(structure, name) for name in fields))
        return first.setdefault(values, structure)

    for structure in structures:
        storages = tree.setdefault(key(structure, 0), {})
        zeros = storages.setdefault(key(structure, 1), {})
        zeros.setdefault(key(structure, 2), []).append(structure)
    return tree


class Allowed:
    """For which candidates of a chunk the rules of a level allow a structure."""

    def __init__(self, request: TrainRequest, columns: Columns, box: tuple[int, ...]) -> None:
        self.request, self.columns, self.box = request, columns, box
        self.limits = [_limits(request, level) for level in range(len(LEVELS))]
        self.masks: dict[tuple, np.ndarray | None] = {}
        self._seen: dict[tuple[int, int], tuple[Structure, np.ndarray | None]] = {}

    def __call__(self, structure: Structure, level: int) -> np.ndarray | None:
        """The mask; None where it allows nothing. It is kept by the structure as an object, which
        is kept too: to read its choices takes longer."""
        at = level, id(structure)
        if at not in self._seen:
            self._seen[at] = structure, self._mask(structure, level)
        return self._seen[at][1]

    def _mask(self, structure: Structure, level: int) -> np.ndarray | None:
        rules, limits = _RULES[level], self.limits[level]
        about = [_at(structure, name) for rule in (*rules, *limits) for name in rule.about]
        at = (level, *about)
        if at not in self.masks:
            mask = np.ones(len(self.columns), bool)
            for rule in rules:
                mask &= rule.holds(self.request, self.columns, structure)
            if limits:
                wanted = columns_for(self.request, self.columns, structure, self.box)
                for limit in limits:
                    mask &= limit.mask(wanted)
            self.masks[at] = mask if mask.any() else None
        return self.masks[at]


def _at(structure: Structure, name: str) -> object:
    """A choice as a key."""
    value = getattr(structure, name)
    return str(value) if isinstance(value, Mapping) else value


def _level(about: tuple[str, ...]) -> int:
    """The level that decides a rule; the first where it is about none of their choices."""
    return max((i for i, names in enumerate(_FIELDS) if set(names) & set(about)), default=0)


def _limits(request: TrainRequest, level: int) -> list[Limit]:
    """The limits of the software that a level decides."""
    return [m for m in limits_of(request) if m.about and _level(m.about) == level]


_RULES = [[rule for rule in STRUCTURE_RULES if _level(rule.about) == i] for i in range(len(LEVELS))]
"""The rules that each level decides."""
