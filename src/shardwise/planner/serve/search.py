"""Search the servers of one slice: meshes and batches as columns of arrays.

For each part of the slice and each way to cut the KV cache, every legal mesh is tried with batches
up to the largest that memory holds, counted, placed and priced at once by the functions that price
a single plan. A mesh is legal if tensor divides the heads, expert divides the experts, and it can
be placed. `fsdp` cuts D of weights that stay in place: no more ways than tensor cuts F, which is
larger, and only where experts are not cut and no chip has a copy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, prod

import numpy as np

from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Placement, Slice, boxes, place
from shardwise.models import ModelConfig
from shardwise.models.specs import Moe
from shardwise.planner.serve.count import ServeShape, cached_heads, decode_work, prefill_work
from shardwise.planner.serve.memory import serve_memory
from shardwise.plans.serve import KV_SHARDINGS, SERVE_AXES, KvSharding, ServeDtypes
from shardwise.roofline import Estimate, price
from shardwise.roofline.engines import IDEAL_ENGINE, Engine
from shardwise.work import Quantity, Work

_MAX_BATCH = 2**17
_BATCHES = tuple(sorted({round(2 ** (i / 2)) for i in range(35)}))
"""Batches looked at below the largest: powers of the square root of two."""
_PROBES, _ROUNDS = 24, 32
_PROBE_AT = np.arange(1, _PROBES + 1) / (_PROBES + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Prefill at a given share of the peak by 2 * params * tokens (the book's arithmetic)."""

    share: float
    params: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """What is to be served, and what the search may choose from.

    `pieces` are the slices to choose from, smallest first. `batch` fixes the batch where it is not
    0. `max_tpot` and `max_ttft` bound the expected seconds, infinite where there is no target.
    `utilisation` replaces the expected prefill time, if given. `engine` is the software that
    serves. `kv_scales` as in `ServeShape`.
    """

    cfg: ModelConfig
    model: str
    pieces: tuple[Slice, ...]
    input_length: int
    output_length: int
    dtypes: ServeDtypes
    prefill_chunk: int = 8192
    batch: int = 0
    max_tpot: float = inf
    max_ttft: float = inf
    pins: Mapping[str, int] = field(default_factory=dict)
    utilisation: Utilisation | None = None
    engine: Engine = IDEAL_ENGINE
    kv_scales: bool = True

    @property
    def has_targets(self) -> bool:
        """Whether a time is bounded."""
        return self.max_tpot < inf or self.max_ttft < inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Seconds lower, expected and upper; numbers or arrays over candidates."""

    lower: Quantity
    expected: Quantity
    upper: Quantity

    def __add__(self, other: "Bounds") -> "Bounds":
        return Bounds(
            lower=self.lower + other.lower,
            expected=self.expected + other.expected,
            upper=self.upper + other.upper,
        )

    def take(self, index: np.ndarray) -> "Bounds":
        """The candidates at an index or mask."""
        return Bounds(
            lower=np.asarray(self.lower)[index],
            expected=np.asarray(self.expected)[index],
            upper=np.asarray(self.upper)[index],
        )

    def as_dict(self) -> dict[str, float]:
        """The three of one candidate, by name."""
        return {
            "lower": float(self.lower),
            "expected": float(self.expected),
            "upper": float(self.upper),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One candidate as the search saw it; `memory` is bytes per device."""

    piece: Slice
    box: tuple[int, ...]
    mesh: Mapping[str, int]
    kv_sharding: KvSharding
    batch: int
    ttft: Bounds
    tpot: Bounds
    memory: float

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Answer tokens per expected second and chip of the slice, while decoding."""
        return self.batch / float(self.tpot.expected) / self.piece.chips

    def meets(self, request: ServeRequest) -> bool:
        """Whether the expected times are within the targets."""
        return (
            float(self.tpot.expected) <= request.max_tpot
            and float(self.ttft.expected) <= request.max_ttft
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFound:
    """What one slice can do. `points` fit in memory; `need` is the least memory per device of any
    mesh at the smallest batch, `priced` how many candidates have all bounds."""

    piece: Slice
    points: tuple[Point, ...]
    need: float
    leanest: Mapping[str, int]
    priced: int

    @property
    def usable(self) -> float:
        """HBM bytes that one device can use."""
        return usable_bytes(self.piece)


def usable_bytes(piece: Slice) -> float:
    """HBM bytes per JAX device that a program can use."""
    return piece.chip.require("hbm_usable_bytes") / piece.chip.jax_devices_per_chip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meshes:
    """Legal meshes of one part of a slice, as columns, with one way to cut the cache."""

    request: ServeRequest
    piece: Slice
    box: tuple[int, ...]
    degrees: Mapping[str, np.ndarray]
    kv_sharding: KvSharding

    def __len__(self) -> int:
        return len(self.degrees["tensor"])

    def take(self, index: np.ndarray) -> "_Meshes":
        return replace(self, degrees={a: d[index] for a, d in self.degrees.items()})

    def shape(self, batch: Quantity) -> ServeShape:
        used = {a: d.astype(float) for a, d in self.degrees.items() if np.any(d > 1)}
        return serve_shape(self.request, used, batch, self.kv_sharding)

    def memory(self, batch: Quantity) -> np.ndarray:
        peak = serve_memory(self.request.cfg, self.shape(batch)).peak()
        return np.broadcast_to(peak, (len(self),))

    def tpot(self, batch: Quantity) -> Bounds:
        shape = self.shape(batch)
        return self._priced(decode_work(self.request.cfg, shape), shape.sequences)

    def prefill(self) -> Bounds:
        shape = self.shape(1.0)
        bounds = self._priced(prefill_work(self.request.cfg, shape), shape.chunks)
        return at_utilisation(bounds, self.request, self.piece, prod(self.box) * self.piece.count)

    def _priced(self, work: Work, sequences: Quantity) -> Bounds:
        placement, engine = place_mesh(self.piece, self.degrees, self.box), self.request.engine
        found = price(work, self.piece.chip, placement, stack=engine.stack)
        bounds, shape = served_bounds(found, engine, sequences), (len(self),)
        return Bounds(
            lower=np.broadcast_to(bounds.lower, shape),
            expected=np.broadcast_to(bounds.expected, shape),
            upper=np.broadcast_to(bounds.upper, shape),
        )


def served_bounds(estimate: Estimate, engine: Engine, sequences: Quantity) -> Bounds:
    """What a priced step takes in an engine, with what it spends per running sequence."""
    host = engine.sequence_seconds * sequences
    return Bounds(
        lower=estimate.lower, expected=estimate.expected + host, upper=estimate.upper + host
    )


def serve_shape(
    request: ServeRequest,
    degrees: Mapping[str, Quantity],
    batch: Quantity,
    kv_sharding: KvSharding,
) -> ServeShape:
    """A request on meshes as the numbers that counting needs."""
    return ServeShape(
        degrees=degrees,
        batch=batch,
        input_length=request.input_length,
        output_length=request.output_length,
        prefill_chunk=request.prefill_chunk,
        kv_sharding=kv_sharding,
        dtypes=request.dtypes,
        compute_of=compute_of(request.dtypes, request.pieces[0].chip),
        kv_scales=request.kv_scales,
    )


def counts_scales(constants: str) -> bool:
    """Whether the scales of an int8 cache are counted: not in the book's numbers."""
    return constants != "book"


def compute_dtypes(chip: Chip) -> Mapping[str, str]:
    """What engines multiply quantized weights in: their own dtype where the chip has a peak for it,
    mxfp4 weights (with activations of more bits) in fp8 on chips that have fp4, else bf16."""
    found: dict[str, str] = {}
    for stored, rate in (("fp8", "fp8"), ("int8", "int8"), ("nvfp4", "fp4")):
        found[stored] = rate if rate in chip.peak_flops else "bf16"
    found["mxfp4"] = "fp8" if "fp4" in chip.peak_flops else "bf16"
    return found


def compute_of(dtypes: ServeDtypes, chip: Chip) -> Mapping[str, str]:
    """`ServeShape.compute_of` of a plan's dtypes on a chip."""
    return compute_dtypes(chip) if dtypes.matmuls == "stored" else {}


def at_utilisation(bounds: Bounds, request: ServeRequest, piece: Slice, chips: int) -> Bounds:
    """The prefill time with the expected one replaced by the given utilisation, if there is one;
    lower and upper are widened to it."""
    given = request.utilisation
    if given is None:
        return bounds
    peak = chips * piece.chip.peak(request.dtypes.compute)
    seconds = 2 * given.params * request.input_length / (peak * given.share)
    return Bounds(
        lower=np.minimum(bounds.lower, seconds),
        expected=seconds + 0.0 * np.asarray(bounds.expected),
        upper=np.maximum(bounds.upper, seconds),
    )


def place_mesh(
    piece: Slice, degrees: Mapping[str, int | np.ndarray], box: tuple[int, ...]
) -> Placement:
    """Place the axes of a server, those that the mesh does not name too."""
    return place(piece, {axis: degrees.get(axis, 1) for axis in SERVE_AXES}, box=box)


def search_slice(request: ServeRequest, piece: Slice, *, exact: bool = True) -> SliceFound:
    """All servers on a slice. Fewer chips than it has are used only where no mesh uses them all.

    Not `exact`, the largest batches within the targets are found to a few per cent, from below.
    """
    need, leanest, points, priced = inf, {}, [], 0
    for box in boxes(piece):
        for meshes in _meshes(request, piece, box):
            lean = meshes.memory(max(request.batch, 1))
            best = int(np.argmin(lean))
            if lean[best] < need:
                need, leanest = float(lean[best]), _mesh_at(meshes, best)
            meshes = meshes.take(np.flatnonzero(lean <= usable_bytes(piece)))
            if len(meshes):
                found = _points(meshes, exact)
                priced += len(found)
                points += found
        if points:
            break
    return SliceFound(piece=piece, points=tuple(points), need=need, leanest=leanest, priced=priced)


def _meshes(request: ServeRequest, piece: Slice, box: tuple[int, ...]) -> list[_Meshes]:
    """Legal meshes of the box; spreading sequences only where tensor exceeds the KV heads."""
    degrees = legal_degrees(request, piece, box)
    found = []
    for kv_sharding in KV_SHARDINGS:
        meshes = _Meshes(
            request=request, piece=piece, box=box, degrees=degrees, kv_sharding=kv_sharding
        )
        if kv_sharding != "heads":
            meshes = meshes.take(degrees["tensor"] > fewest_kv_heads(request.cfg))
        if len(meshes):
            found.append(meshes)
    return found


def legal_degrees(
    request: ServeRequest, piece: Slice, box: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Every legal mesh of a box as columns of degrees."""
    devices = prod(box) * piece.count * piece.chip.jax_devices_per_chip
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    tensor = [d for d in divisors if heads_divide(request.cfg, d)]
    expert = [d for d in divisors if experts_of(request.cfg) % d == 0]
    width = [d for d in divisors if request.cfg.d_model % d == 0]
    grid = [g.ravel() for g in np.meshgrid(width, expert, tensor, indexing="ij")]
    product = grid[0] * grid[1] * grid[2]
    still = (grid[1] == 1) & (grid[0] <= grid[2]) & (product == devices)
    fits = ((grid[0] == 1) | still) & (devices % product == 0)
    degrees = {a: g[fits] for a, g in zip(SERVE_AXES[1:], grid, strict=True)}
    degrees = {"data": devices // np.prod(list(degrees.values()), axis=0), **degrees}
    keep = np.ones(len(degrees["data"]), bool)
    for axis, pinned in request.pins.items():
        if axis not in SERVE_AXES:
            raise BadRequest(
                f"mesh axis '{axis}' cannot be pinned for serving; its axes are "
                f"{', '.join(SERVE_AXES)}"
            )
        keep &= degrees[axis] == pinned
    degrees = {a: d[keep] for a, d in degrees.items()}
    legal = place_mesh(piece, degrees, box).legal
    return {a: d[np.broadcast_to(legal, d.shape)] for a, d in degrees.items()}


def heads_divide(cfg: ModelConfig, degree: int) -> bool:
    """Whether a tensor degree divides the heads of every layer."""
    heads = [getattr(layer.mixer, "heads", degree) for layer in cfg.groups]
    return all(n % degree == 0 for n in heads)


def experts_of(cfg: ModelConfig) -> int:
    """Routed experts of a layer; 1 for a dense model."""
    counts = [layer.mlp.experts for layer in cfg.groups if isinstance(layer.mlp, Moe)]
    return min(counts, default=1)


def fewest_kv_heads(cfg: ModelConfig) -> int:
    """KV heads of the layer that has fewest; sequences are spread beyond that many."""
    heads = [cached_heads(layer.attention) for layer in cfg.groups if layer.attention is not None]
    return min(heads, default=_MAX_BATCH)


def _points(meshes: _Meshes, exact: bool) -> list[Point]:
    """Every mesh with a ladder of batches up to what fits, and the largest within the targets."""
    request, prefill = meshes.request, meshes.prefill()
    if request.batch:
        which, batch = np.arange(len(meshes)), np.full(len(meshes), request.batch)
    else:
        largest = _largest(_fits, meshes, np.full(len(meshes), _MAX_BATCH))
        targeted = largest
        if request.has_targets:
            rounds = _ROUNDS if exact else 1
            targeted = _largest(partial(_in_time, prefill), meshes, largest, rounds)
        which, batch = _ladder(largest, targeted)
    columns = meshes.take(which)
    tpot = columns.tpot(batch.astype(float))
    ttft, memory = prefill.take(which) + tpot, columns.memory(batch.astype(float))
    return [
        Point(
            piece=meshes.piece,
            box=meshes.box,
            mesh=_mesh_at(columns, i),
            kv_sharding=meshes.kv_sharding,
            batch=int(batch[i]),
            ttft=ttft.take(np.asarray(i)),
            tpot=tpot.take(np.asarray(i)),
            memory=float(memory[i]),
        )
        for i in range(len(which))
    ]


def _fits(meshes: _Meshes, which: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Whether batches fit in memory on the meshes at `which`."""
    return meshes.take(which).memory(batch) <= usable_bytes(meshes.piece)


def _in_time(prefill: Bounds, meshes: _Meshes, which: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Whether the expected times of batches meet the targets."""
    tpot = meshes.take(which).tpot(batch).expected
    first = np.asarray(prefill.expected)[which] + tpot
    return (tpot <= meshes.request.max_tpot) & (first <= meshes.request.max_ttft)


def _largest(
    holds: Callable[[_Meshes, np.ndarray, np.ndarray], np.ndarray],
    meshes: _Meshes,
    most: np.ndarray,
    rounds: int = _ROUNDS,
) -> np.ndarray:
    """The largest batch of each mesh, up to `most`, for which a condition that more sequences can
    only break still holds; 0 where it never does. After fewer rounds it is found from below.

    Each round tries many batches between the bounds at once: the cost of a call is its overhead.
    """
    low, high = np.zeros(len(most)), most + 1.0
    which = np.repeat(np.arange(len(most)), _PROBES)
    while np.any(high - low > 1) and rounds:
        rounds -= 1
        steps = low[:, None] + (high - low)[:, None] * _PROBE_AT
        batch = np.clip(np.floor(steps), low[:, None] + 1, high[:, None] - 1)
        batch = np.maximum(batch, 1.0)
        good = holds(meshes, which, batch.ravel()).reshape(batch.shape)
        low = np.maximum(low, np.max(np.where(good, batch, 0.0), axis=1))
        high = np.minimum(high, np.min(np.where(good, np.inf, batch), axis=1))
        low = np.minimum(low, high - 1)  # a condition that is not quite monotone keeps the order
    return low.astype(int)


def _ladder(largest: np.ndarray, targeted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of mesh index and batch: the steps below the largest, the largest, the targeted one."""
    which, batch = [], []
    for i, (top, wanted) in enumerate(zip(largest.tolist(), targeted.tolist(), strict=True)):
        steps = {b for b in _BATCHES if b < top} | {top} | ({wanted} if wanted else set())
        which += [i] * len(steps)
        batch += sorted(steps)
    return np.array(which), np.array(batch)


def _mesh_at(meshes: _Meshes, index: int) -> dict[str, int]:
    return {a: int(d[index]) for a, d in meshes.degrees.items() if d[index] > 1}


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Points that no other beats in both expected TPOT and tokens/s/chip, fastest step first."""
    kept: list[Point] = []
    ranked = sorted(
        points,
        key=lambda p: (float(p.tpot.expected), -p.tokens_per_second_per_chip, p.piece.chips),
    )
    for point in ranked:
        if not kept or point.tokens_per_second_per_chip > kept[-1].tokens_per_second_per_chip:
            kept.append(point)
    return tuple(kept)
