"""Search the training plans of one slice: structure in a small loop, degrees on arrays.

The outer loop runs over the box of chips used, the remat policy and the way of placing; inside, all
meshes and microbatch counts are columns of arrays that are counted, placed and priced at once with
the same functions that price a single plan. A mesh is legal if its degrees divide what they cut
(heads, experts, sequences, context; layers may split unevenly over stages) and can be placed.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

import numpy as np

from shardwise.hardware import Slice, every_part, parts, place
from shardwise.models import ModelConfig
from shardwise.models.flops import model_flops_per_token
from shardwise.models.specs import Moe
from shardwise.planner.train_memory import train_memory
from shardwise.planner.train_work import TrainShape, train_work
from shardwise.plans import MESH_AXES, TrainDtypes
from shardwise.plans.train import PLACINGS, REMAT_POLICIES, Placing, Remat
from shardwise.roofline import price
from shardwise.work import Quantity

_CHUNK = 16_384  # columns priced at once; larger arrays fall out of the cache
_MAX_TENSOR, _MAX_CONTEXT = 64, 64
_STRATEGIES = 6
_MICROBATCHES = tuple(2**i for i in range(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What is to be trained, and what the search may choose from. `pins` fixes mesh degrees.

    `model` is what the user called it, for the plan file; `max_hbm_bytes` is per device.
    """

    cfg: ModelConfig
    model: str
    piece: Slice
    sequences: int
    sequence_length: int
    dtypes: TrainDtypes
    pins: Mapping[str, int]
    remat: tuple[Remat, ...] = REMAT_POLICIES
    max_hbm_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Candidates as columns: one array per mesh axis, and the microbatches."""

    degrees: Mapping[str, np.ndarray]
    microbatches: np.ndarray

    def __len__(self) -> int:
        return len(self.microbatches)

    def take(self, index: np.ndarray) -> "Columns":
        """The columns at an index or mask."""
        return Columns(
            degrees={axis: d[index] for axis, d in self.degrees.items()},
            microbatches=self.microbatches[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One candidate as the search saw it."""

    slices: int
    box: tuple[int, ...]
    placement: Placing
    mesh: Mapping[str, int]
    microbatches: int
    remat: Remat
    zero: int
    seconds: float
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """How much was looked at. A candidate is a legal plan with memory and all bounds computed.

    `best` are the fastest that fit, one per mesh, and the fastest of each of the best strategies
    (sets of mesh axes in use); `nearest` is the plan that needs the least memory
    where none fits.
    """

    enumerated: int
    legal: int
    candidates: int
    seconds: float
    best: tuple[Found, ...]
    nearest: Found | None


def search(
    request: TrainRequest, keep: int, progress: Callable[[int, int], None] | None = None
) -> SearchReport:
    """All legal plans of the slice; the `keep` fastest that fit, with distinct meshes.

    Looked at are the whole slice and its parts rounded down; smaller parts only where no mesh on
    these is legal. `progress` is told how many of how many parts are done.
    """
    tally = _Tally(request=request, keep=keep)
    looked = parts(request.piece)
    for done, (piece, box) in enumerate(looked):
        tally.look(piece, box)
        if progress:
            progress(done + 1, len(looked))
    if not tally.legal:
        for piece, box in every_part(request.piece):
            tally.look(piece, box)
            if tally.found:
                break
    return tally.report()


class _Tally:
    """What a search has seen so far."""

    def __init__(self, *, request: TrainRequest, keep: int) -> None:
        self.request, self.keep = request, keep
        self.started = time.perf_counter()
        self.enumerated = self.legal = self.candidates = 0
        self.found: list[Found] = []
        self.nearest: Found | None = None

    def look(self, piece: Slice, box: tuple[int, ...]) -> None:
        """Price everything that a part of the slice allows, unless it is too small to win."""
        request = replace(self.request, piece=piece)
        best = min((f.seconds for f in self.found), default=inf)
        if _ideal_seconds(request, box) > best:
            return  # so few chips cannot be faster even at peak
        looked, columns = _legal_columns(request, box)
        ways = [*product(policies(request), PLACINGS)]
        self.enumerated += looked * len(ways)
        self.legal += len(columns) * len(ways)
        for remat, placing in ways if len(columns) else ():
            priced, fitting, lean = _best_of(request, box, placing, columns, remat, self.keep)
            self.candidates += priced
            self.found += fitting
            if self.nearest is None or (lean is not None and lean.memory < self.nearest.memory):
                self.nearest = lean

    def report(self) -> SearchReport:
        """The fastest first."""
        self.found.sort(key=lambda f: f.seconds)
        return SearchReport(
            enumerated=self.enumerated,
            legal=self.legal,
            candidates=self.candidates,
            seconds=time.perf_counter() - self.started,
            best=_distinct(self.found, self.keep),
            nearest=None if self.found else self.nearest,
        )


def policies(request: TrainRequest) -> tuple[Remat, ...]:
    """The remat policies to look at: offload among others only where the host link is known."""
    if request.piece.chip.host_link_oneway is not None or len(request.remat) == 1:
        return request.remat
    return tuple(remat for remat in request.remat if remat != "offload")


def _ideal_seconds(request: TrainRequest, box: tuple[int, ...]) -> float:
    """Model FLOPs of the step at the peak of the box: no plan on it is faster."""
    flops = model_flops_per_token(request.cfg, request.sequence_length, causal=True)
    chips = prod(box) * request.piece.count
    tokens = request.sequences * request.sequence_length
    return float(flops) * tokens / (chips * request.piece.chip.peak(request.dtypes.compute))


def _distinct(found: list[Found], keep: int) -> tuple[Found, ...]:
    """The fastest plan of the fastest meshes, and of the fastest strategies, fastest first."""
    by_mesh: dict[tuple[tuple[str, int], ...], Found] = {}
    by_strategy: dict[tuple[str, ...], Found] = {}
    for f in found:
        by_mesh.setdefault(tuple(f.mesh.items()), f)
        by_strategy.setdefault(tuple(f.mesh), f)
    chosen = {
        id(f): f
        for f in [*list(by_mesh.values())[:keep], *list(by_strategy.values())[:_STRATEGIES]]
    }
    return tuple(sorted(chosen.values(), key=lambda f: f.seconds))


def batch_units(request: TrainRequest) -> np.ndarray:
    """What a batch may be a multiple of: batch shards x microbatches of every mesh that is legal
    but for the batch, on the slice and its parts rounded down."""
    units = []
    for piece, box in parts(request.piece):
        part = replace(request, piece=piece)
        units.append(_units(_placeable(part, _enumerate(part, box), box)))
    return np.unique(np.concatenate(units))


def _legal_columns(request: TrainRequest, box: tuple[int, ...]) -> tuple[int, Columns]:
    """How many meshes were enumerated, and those that divide everything and can be placed."""
    columns = _enumerate(request, box)
    even = request.sequences % _units(columns) == 0
    return len(columns), _placeable(request, columns.take(even), box)


def _units(columns: Columns) -> np.ndarray:
    d = columns.degrees
    return d["replica"] * d["data"] * d["fsdp"] * d["expert"] * columns.microbatches


def _placeable(request: TrainRequest, columns: Columns, box: tuple[int, ...]) -> Columns:
    """The columns with a microbatch for every stage that some placing can lay out."""
    stages = columns.degrees["stage"]
    columns = columns.take((stages == 1) | (columns.microbatches >= stages))
    legal = np.zeros(len(columns), bool)
    for placing in PLACINGS:
        legal |= place(request.piece, columns.degrees, box=box, finish=placing == "finish").legal
    return columns.take(legal)


def _enumerate(request: TrainRequest, box: tuple[int, ...]) -> Columns:
    """Every factorisation of the box's devices over the mesh axes, times the microbatch counts."""
    devices = prod(box) * request.piece.count * request.piece.chip.jax_devices_per_chip
    cfg, divisors = request.cfg, _divisors(devices)
    across = request.piece.count
    limits = {
        "replica": [d for d in divisors if across % d == 0],
        "stage": [d for d in divisors if d <= cfg.layers],
        "data": divisors,
        "expert": [d for d in divisors if d <= _experts(cfg) and _experts(cfg) % d == 0],
        "context": [d for d in divisors if d <= _MAX_CONTEXT and request.sequence_length % d == 0],
        "tensor": [d for d in divisors if d <= _MAX_TENSOR and _heads_divide(cfg, d)],
    }
    if not _switched_or_single(request.piece):
        limits["data"] = [1]  # within a torus slice fsdp stores less over the same links
    elif across > 1:
        limits["replica"] = [1]  # behind switches data plays the role of replica
    for axis, degree in request.pins.items():
        if axis != "fsdp":  # fsdp takes what the others leave: checked below
            limits[axis] = [degree]
    grids = np.meshgrid(*limits.values(), np.array(_MICROBATCHES), indexing="ij")
    flat = [g.ravel().astype(np.int64) for g in grids]
    degrees = dict(zip(limits, flat, strict=False))
    used = np.prod(list(degrees.values()), axis=0)
    keep = devices % used == 0
    degrees = {axis: d[keep] for axis, d in degrees.items()}
    degrees["fsdp"] = devices // used[keep]
    if "fsdp" in request.pins:
        pinned = degrees["fsdp"] == request.pins["fsdp"]
        degrees = {axis: d[pinned] for axis, d in degrees.items()}
        keep = np.flatnonzero(keep)[pinned]
    return Columns(degrees={axis: degrees[axis] for axis in MESH_AXES}, microbatches=flat[-1][keep])


def _switched_or_single(piece: Slice) -> bool:
    """Whether chips sit behind switches rather than on a torus."""
    return len(piece.shape) == 1


def _best_of(
    request: TrainRequest,
    box: tuple[int, ...],
    placing: Placing,
    columns: Columns,
    remat: Remat,
    keep: int,
) -> tuple[int, list[Found], Found | None]:
    """Price the columns under one policy: how many, the fastest that fit, and the leanest."""
    priced, found = 0, []
    leanest: Found | None = None
    for part in _chunks(columns):
        zero = 1
        shape = column_shape(request, part, remat, zero)
        memory = np.broadcast_to(train_memory(request.cfg, shape).peak(), (len(part),))
        lean = int(np.argmin(memory))
        if leanest is None or memory[lean] < leanest.memory:
            figures = float("inf"), float(memory[lean])
            leanest = _found(part, lean, request.piece.count, box, placing, remat, zero, *figures)
        fits = memory <= request.max_hbm_bytes
        if not fits.any():
            continue
        part, memory = part.take(fits), memory[fits]
        shape = column_shape(request, part, remat, zero)
        seconds = column_seconds(request, box, placing, part, shape)
        placeable = np.isfinite(seconds)
        part, memory, seconds = part.take(placeable), memory[placeable], seconds[placeable]
        priced += len(part)
        for i in _shortlist(seconds, part, 4 * keep):
            figures = float(seconds[i]), float(memory[i])
            found.append(
                _found(part, int(i), request.piece.count, box, placing, remat, zero, *figures)
            )
    return priced, found, leanest


def _shortlist(seconds: np.ndarray, part: Columns, keep: int) -> np.ndarray:
    """The fastest columns, and the fastest one of every strategy (set of axes in use)."""
    order = np.argsort(seconds, kind="stable")
    used = sum((d > 1).astype(int) << i for i, d in enumerate(part.degrees.values()))
    _, first = np.unique(np.broadcast_to(used, seconds.shape)[order], return_index=True)
    return np.unique(np.concatenate([order[:keep], order[first]]))


def _found(
    part: Columns,
    i: int,
    slices: int,
    box: tuple[int, ...],
    placing: Placing,
    remat: Remat,
    zero: int,
    seconds: float,
    memory: float,
) -> Found:
    mesh = {axis: int(d[i]) for axis, d in part.degrees.items() if d[i] > 1}
    return Found(
        slices=slices,
        box=box,
        placement=placing,
        mesh=mesh,
        microbatches=int(part.microbatches[i]),
        remat=remat,
        zero=zero,
        seconds=seconds,
        memory=memory,
    )


def column_shape(request: TrainRequest, part: Columns, remat: Remat, zero: int) -> TrainShape:
    """The columns as one TrainShape of arrays."""
    d = {axis: degree.astype(float) for axis, degree in part.degrees.items()}
    shards = d["replica"] * d["data"] * d["fsdp"] * d["expert"]
    layers = request.cfg.layers
    return TrainShape(
        degrees={axis: v for axis, v in d.items() if np.any(v > 1)},
        sequences=request.sequences / (shards * part.microbatches),
        sequence_length=request.sequence_length,
        microbatches=part.microbatches.astype(float),
        stage_share=np.ceil(layers / d["stage"]) / layers,
        remat=remat,
        zero=zero,
        sequence_parallel=True,
        dtypes=request.dtypes,
    )


def column_seconds(
    request: TrainRequest,
    box: tuple[int, ...],
    placing: Placing,
    part: Columns,
    shape: TrainShape,
) -> np.ndarray:
    """Expected seconds per step of every column; infinite where it cannot be placed this way."""
    placed = place(request.piece, part.degrees, box=box, finish=placing == "finish")
    estimate = price(
        train_work(request.cfg, shape),
        request.piece.chip,
        placed,
        stretch=bubble_stretch(shape, request.cfg),
    )
    return np.where(placed.legal, np.broadcast_to(estimate.expected, (len(part),)), np.inf)


def bubble_stretch(shape: TrainShape, cfg: ModelConfig) -> dict[str, Quantity]:
    """1F1B idles (stages - 1) of (microbatches + stages - 1) rounds: every body but the optimizer
    takes (M + S - 1)/M times its work (ch. 5.1.5)."""
    factor = 1.0 + (shape.degree("stage") - 1) / shape.microbatches
    kinds = ("forward", "backward", "backward_last")
    bodies = [f"{kind}.{g}" for kind in kinds for g in range(len(cfg.groups))]
    return dict.fromkeys([*bodies, "first", "last"], factor)


def _chunks(columns: Columns) -> Iterator[Columns]:
    for start in range(0, len(columns), _CHUNK):
        yield columns.take(np.arange(start, min(start + _CHUNK, len(columns))))


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _experts(cfg: ModelConfig) -> int:
    """Routed experts of a layer; 1 for a dense model."""
    counts = [layer.mlp.experts for layer in cfg.groups if isinstance(layer.mlp, Moe)]
    return min(counts, default=1)


def _heads_divide(cfg: ModelConfig, degree: int) -> bool:
    heads = [getattr(layer.mixer, "heads", degree) for layer in cfg.groups]
    return all(n % degree == 0 for n in heads)
