"""Server: one replica of a model on a part of a slice, or many of them as columns of arrays.

A plan is the server of one mesh; a search prices the meshes of a slice at once by the same methods.
A mesh is legal if tensor divides the heads, expert divides the experts, and it can be placed.
`fsdp` cuts D of weights that stay in place: no more ways than tensor cuts F, which is larger, and
only where experts are not cut and no chip has a copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Placement, Slice, place
from shardwise.models import ModelConfig
from shardwise.models.specs import Moe
from shardwise.planner.serve.count import decode_work, prefill_work, step_work
from shardwise.planner.serve.engine_memory import budget
from shardwise.planner.serve.memory import (
    kv_bytes_per_device,
    serve_memory,
    token_bytes_per_device,
)
from shardwise.planner.serve.request import ServeRequest, Utilisation
from shardwise.planner.serve.shape import ServeShape, cached_heads
from shardwise.planner.simulate.cost import Lag
from shardwise.plans import ServePlan, model_hash
from shardwise.plans.engine_memory import EngineMemory, engine_memory, seen_bytes
from shardwise.plans.serve import KV_SHARDINGS, SERVE_AXES, KvSharding, ServeDtypes
from shardwise.roofline import Estimate, price
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.engines import TOKEN_SECONDS, EngineConstants, ahead, load_engine
from shardwise.scheduling.step import StepShape
from shardwise.work import MemoryTimeline, Quantity, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundColumns:
    """Seconds lower, expected and upper; numbers or arrays over candidates."""

    lower: Quantity
    expected: Quantity
    upper: Quantity

    def take(self, index: np.ndarray | int) -> "BoundColumns":
        """The candidates at an index or mask."""
        found = (np.asarray(bound)[index] for bound in (self.lower, self.expected, self.upper))
        return BoundColumns(**dict(zip(("lower", "expected", "upper"), found, strict=True)))

    def one(self) -> Bounds:
        """The three of one candidate."""
        return Bounds(
            lower=float(self.lower), expected=float(self.expected), upper=float(self.upper)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A prefill or a decode step: what it does on the busiest device, priced on the chip, and the
    seconds that it takes in an engine."""

    work: Work
    estimate: Estimate
    bounds: BoundColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A replica on `box` of a slice. `degrees` has every axis of `SERVE_AXES`, a number for one
    mesh or an array over many."""

    request: ServeRequest
    piece: Slice
    box: tuple[int, ...]
    degrees: Mapping[str, int | np.ndarray]
    kv_sharding: KvSharding
    dtypes: ServeDtypes

    def __len__(self) -> int:
        return np.size(self.degrees["tensor"])

    def take(self, index: np.ndarray) -> "Server":
        """The meshes at an index or mask."""
        return replace(self, degrees={a: np.atleast_1d(d)[index] for a, d in self.degrees.items()})

    def at(self, index: int) -> "Server":
        """One of the meshes."""
        return replace(self, degrees={a: int(d[index]) for a, d in self.degrees.items()})  # type: ignore[index]

    @property
    def mesh(self) -> dict[str, int]:
        """The degrees above 1 of one mesh."""
        return {a: int(d) for a, d in self.degrees.items() if d > 1}

    @property
    def chips(self) -> int:
        """Chips of one replica."""
        return prod(self.box) * self.piece.count

    @property
    def usable_bytes(self) -> float:
        """HBM bytes of one device that a program can use."""
        return self.piece.chip.usable_bytes_per_device

    @property
    def engine_memory(self) -> EngineMemory | None:
        """How its engine counts memory; None where nothing is known of it."""
        request = self.request
        if request.constants == "book":
            return None
        family = request.engine.family or request.engine.name
        found = engine_memory(family, self.piece.chip, request.release)
        return found and replace(found, graphs=request.graphs)

    @property
    def placement(self) -> Placement:
        """Where the mesh lies on the slice."""
        return place_mesh(self.piece, self.degrees, self.box)

    def shape(self, batch: Quantity = 1.0, chunk: int = 0) -> ServeShape:
        """The server as counting needs it, with chunks of the request's first size unless told."""
        request = self.request
        return ServeShape(
            degrees={a: np.asarray(d, float)[()] for a, d in self.degrees.items() if np.any(d > 1)},
            batch=batch,
            input_length=request.input_length,
            output_length=request.output_length,
            prefill_chunk=chunk or request.chunks[0],
            kv_sharding=self.kv_sharding,
            dtypes=self.dtypes,
            compute_of=compute_of(self.dtypes, self.piece.chip),
            kv_scales=request.constants != "book",  # not in the book's numbers
            engine=self.engine_memory,
        )

    def price(self, work: Work) -> Estimate:
        """Seconds of a step with the engine's kernels and hops."""
        return price(work, self.piece.chip, self.placement, stack=self.request.engine.stack)

    def seconds(self, step: StepShape) -> np.ndarray:
        """Expected seconds of one step on each mesh, the engine's own per sequence included."""
        shape = self.shape()
        found = self.price(step_work(self.request.cfg, shape, step)).expected
        sequences = (step.decodes + step.prefills) / shape.splits
        taken = found + self.request.engine.sequence_seconds * sequences
        return np.broadcast_arrays(taken, self.degrees["tensor"])[0]

    def decode(self, batch: Quantity) -> Phase:
        """One decode step of a full batch at its mean context."""
        shape = self.shape(batch)
        return self._phase(decode_work(self.request.cfg, shape), shape.sequences)

    def prefill(self, batch: Quantity = 1.0) -> Phase:
        """The prefill of one prompt, at the utilisation that was asked for, if one was."""
        shape = self.shape(batch)
        phase = self._phase(prefill_work(self.request.cfg, shape), shape.chunks)
        given = self.request.utilisation
        return phase if given is None else replace(phase, bounds=self._at(given, phase.bounds))

    def lag(self, *, pools: bool = False) -> Lag:
        """What the engine adds to a time to the first token: its way in and out; beside others the
        steps until it looks at a request, of which half a one is waited for anyhow; what the host
        takes to start a prompt's kernels beyond the device's own seconds; and between two pools
        what it needs beside moving the cache."""
        arrival = self.request.engine.arrival
        handover = float(arrival.handover_seconds) if pools else 0.0
        each = float(arrival.beside_seconds) / 1000, float(arrival.start_seconds)
        device, beside, host = self._started(*each)
        return Lag(
            seconds=float(arrival.request_seconds) + handover + self._through_stages(),
            per_token=TOKEN_SECONDS if arrival.sources else 0.0,
            steps=max(float(arrival.poll_steps) - 0.5, 0.0),
            beside=beside,
            start=ahead(device, host) - device,
        )

    def _through_stages(self) -> float:
        """Seconds by which a chunk of a prompt leaves the last stage later than the share of a step
        that it has: it passes one stage after the other. Of several meshes the longest."""
        stages, request = self.degrees["stage"], self.request
        if not np.any(np.asarray(stages) > 1):
            return 0.0
        tokens = min(request.input_length, max(request.chunks) / float(np.max(stages)))
        each: Any = {
            "prefills": stages,  # one prompt on each stage
            "prefill_tokens": stages * tokens,
            "prefill_pairs": stages * tokens**2 / 2,
            "samples": stages,
        }
        whole = self.seconds(StepShape(**each))
        return float(np.max((1 - 1 / np.asarray(stages, float)) * whole))

    def _started(self, *each: float) -> list[Quantity]:
        """Seconds of a prompt on the device, and in which the host starts its kernels, `each` for
        one: their number is what their launch adds to a price."""
        if not any(each):
            return [0.0, *(0.0 for _ in each)]
        work, stack = prefill_work(self.request.cfg, self.shape()), self.request.engine.stack

        def taken(more: float) -> Quantity:
            slower = replace(stack, launch_seconds=stack.launch_seconds + more)
            return price(work, self.piece.chip, self.placement, stack=slower).expected

        now = taken(0.0)
        return [now, *(taken(one) - now if one else 0.0 for one in each)]

    def _phase(self, work: Work, sequences: Quantity) -> Phase:
        """A priced step, with what the engine spends on each of its running sequences."""
        found, host = self.price(work), self.request.engine.sequence_seconds * sequences
        bounds = (found.lower, found.expected + host, found.upper + host)
        columns = np.shape(self.degrees["tensor"])
        lower, expected, upper = (np.broadcast_to(bound, columns) for bound in bounds)
        bounds = BoundColumns(lower=lower, expected=expected, upper=upper)
        return Phase(work=work, estimate=found, bounds=bounds)

    def _at(self, given: Utilisation, bounds: BoundColumns) -> BoundColumns:
        """The expected prefill at a utilisation; lower and upper are widened to it."""
        peak = self.chips * self.piece.chip.peak(self.dtypes.compute)
        seconds = 2 * given.params * self.request.input_length / (peak * given.share)
        return BoundColumns(
            lower=np.minimum(bounds.lower, seconds),
            expected=seconds + 0.0 * np.asarray(bounds.expected),
            upper=np.maximum(bounds.upper, seconds),
        )

    def memory(self, batch: Quantity) -> MemoryTimeline:
        """Bytes of the fullest device."""
        return serve_memory(self.request.cfg, self.shape(batch))

    def peak_bytes(self, batch: Quantity) -> np.ndarray:
        """The most of them, for each mesh."""
        return np.broadcast_to(self.memory(batch).peak(), (len(self),))

    def cache_tokens(self, shape: ServeShape, memory_share: float) -> Quantity:
        """Tokens that the cache of one replica holds beside weights and working memory, in a share
        of the memory: 0 where those do not fit."""
        one = kv_bytes_per_device(self.request.cfg, shape) / shape.sequences
        free = self.cache_bytes(shape, memory_share)
        return free / one * shape.longest * shape.splits

    def requests_held(self, shape: ServeShape, memory_share: float) -> Quantity:
        """Requests of the longest length that the cache of one rank holds: the "maximum
        concurrency" that vLLM prints."""
        return self.cache_tokens(shape, memory_share) / shape.parts / shape.longest

    def line_tokens(self, shape: ServeShape, memory_share: float) -> Quantity:
        """Tokens of its "GPU KV cache size", which an engine prints of each rank."""
        if shape.engine is None or not shape.engine.whole_windows:
            return self.cache_tokens(shape, memory_share) / shape.parts
        one = token_bytes_per_device(self.request.cfg, shape)
        return self.cache_bytes(shape, memory_share) / one * shape.degree("stage")

    def budget(self, shape: ServeShape, memory_share: float) -> Quantity:
        """Bytes of a device that a share of the memory is: of the usable, or as its engine has
        it."""
        if shape.engine is None:
            return memory_share * self.usable_bytes
        total = seen_bytes(self.piece.chip)
        if shape.engine.of_free:
            held = self._beside_cache(shape)
            return held + memory_share * np.maximum(total - held, 0.0)
        return budget(shape.engine, self.request.cfg, shape, total, memory_share)

    def cache_bytes(self, shape: ServeShape, memory_share: float) -> Quantity:
        """Bytes of a device that are left for the cache; 0 where the rest does not fit."""
        return np.maximum(self.budget(shape, memory_share) - self._beside_cache(shape), 0.0)

    def _beside_cache(self, shape: ServeShape) -> Quantity:
        """Bytes of a device that are no cache, at the fullest."""
        held: Quantity = 0.0
        for _, point in serve_memory(self.request.cfg, shape).points:
            held = np.maximum(held, sum(size for kind, size in point.items() if kind != "kv"))
        return held

    def plan(self, *, batch: int, chunk: int, **more) -> ServePlan:
        """One mesh as a plan that can be saved, priced and simulated."""
        request = self.request
        return ServePlan(
            model=request.model,
            model_hash=model_hash(request.cfg),
            slice=str(self.piece),
            mesh=self.mesh,
            box=self.box,
            batch=batch,
            input_length=request.input_length,
            output_length=request.output_length,
            prefill_chunk=chunk,
            kv_sharding=self.kv_sharding,
            dtypes=self.dtypes,
            constants=request.constants,  # type: ignore[arg-type]
            engine=request.engine.name,
            chips=request.chips,
            **more,
        )


def server_of(
    plan: ServePlan,
    cfg: ModelConfig,
    piece: Slice,
    *,
    engine: EngineConstants | None = None,
    utilisation: Utilisation | None = None,
) -> Server:
    """The server of a plan, with its own engine unless told. BadRequest for an unknown one."""
    request = ServeRequest(
        cfg=cfg,
        model=plan.model,
        pieces=(piece,),
        input_length=plan.input_length,
        output_length=plan.output_length,
        dtypes=(plan.dtypes,),
        chunks=(plan.prefill_chunk,),
        batch=plan.batch,
        utilisation=utilisation,
        engine=engine or load_engine(plan.engine),
        constants=plan.constants,
        chips=plan.chips,
        release=plan.scheduling.release,
        graphs=plan.scheduling.graphs,
        shares=(plan.scheduling.memory_share,),
    )
    return Server(
        request=request,
        piece=piece,
        box=plan.box,
        degrees={axis: plan.degree(axis) for axis in SERVE_AXES},
        kv_sharding=plan.kv_sharding,
        dtypes=plan.dtypes,
    )


def servers(
    request: ServeRequest,
    piece: Slice,
    box: tuple[int, ...],
    dtypes: ServeDtypes,
    kv_shardings: Sequence[KvSharding] = KV_SHARDINGS,
) -> list[Server]:
    """The legal meshes of a box, for each way to cut the cache that the software has; sequences are
    spread only where tensor exceeds the KV heads."""
    degrees = legal_degrees(request, piece, box)
    found = []
    known = request.software.kv_shardings
    for kv_sharding in kv_shardings:
        if kv_sharding not in known:
            continue
        server = Server(
            request=request,
            piece=piece,
            box=box,
            degrees=degrees,
            kv_sharding=kv_sharding,
            dtypes=dtypes,
        )
        if kv_sharding != "heads":
            server = server.take(degrees["tensor"] > fewest_kv_heads(request.cfg))
        if len(server):
            found.append(server)
    return found


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


def place_mesh(
    piece: Slice, degrees: Mapping[str, int | np.ndarray], box: tuple[int, ...]
) -> Placement:
    """Place the axes of a server, those that the mesh does not name too."""
    return place(piece, {axis: degrees.get(axis, 1) for axis in SERVE_AXES}, box=box)


def legal_degrees(
    request: ServeRequest, piece: Slice, box: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Every legal mesh of a box as columns of degrees."""
    devices = prod(box) * piece.count * piece.chip.jax_devices_per_chip
    stages = request.pins.get("stage", 1)
    devices = devices // stages if devices % stages == 0 and stages <= request.cfg.layers else 0
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    tensor = [d for d in divisors if heads_divide(request.cfg, d)]
    expert = [d for d in divisors if experts_of(request.cfg) % d == 0]
    width = [d for d in divisors if request.cfg.d_model % d == 0]
    width = width if request.software.cuts_width else [1]
    grid = [g.ravel() for g in np.meshgrid(width, expert, tensor, indexing="ij")]
    product = grid[0] * grid[1] * grid[2]
    still = (grid[1] == 1) & (grid[0] <= grid[2]) & (product == devices)
    fits = ((grid[0] == 1) | still) & (devices % product == 0)
    degrees = {a: g[fits] for a, g in zip(SERVE_AXES[2:], grid, strict=True)}
    degrees = {"data": devices // np.prod(list(degrees.values()), axis=0), **degrees}
    degrees = {"stage": np.full_like(degrees["data"], stages), **degrees}
    keep = _laid_out(request, piece, degrees)
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


def _laid_out(request: ServeRequest, piece: Slice, degrees: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which meshes the software lays out. Copies of a model are servers of their own, so `data` is
    1 unless it is pinned."""
    software, expert, data = request.software, degrees["expert"], degrees["data"]
    keep = (data == 1) | ("data" in request.pins)
    alone = (data * degrees["fsdp"] * expert == 1) & software.stages
    keep &= (degrees["stage"] == 1) | alone
    if not software.heads_beside_experts:
        keep &= (expert == 1) | (data * degrees["tensor"] == 1)
    if piece.chip.vendor in software.tensor_alone:
        keep &= data * expert * degrees["stage"] == 1
    return keep


def heads_divide(cfg: ModelConfig, degree: int) -> bool:
    """Whether a tensor degree divides the heads of every layer."""
    parts = [part for layer in cfg.groups for part in layer.by_mixer]
    heads = [getattr(part.mixer, "heads", degree) for part in parts]
    return all(n % degree == 0 for n in heads)


def experts_of(cfg: ModelConfig) -> int:
    """Routed experts of a layer; 1 for a dense model."""
    counts = [layer.mlp.experts for layer in cfg.groups if isinstance(layer.mlp, Moe)]
    return min(counts, default=1)


def fewest_kv_heads(cfg: ModelConfig) -> int:
    """KV heads of the layer that has fewest; sequences are spread beyond that many. More than any
    degree where no layer has a cache."""
    heads = [cached_heads(layer.attention) for layer in cfg.groups if layer.attention is not None]
    return min(heads, default=2**17)
