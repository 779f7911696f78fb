"""Predict a published serving run: its steps as Work, priced, and the closed loop of its requests.

With an engine's constants linear in every step, `features` holds what multiplies them, so that one
count and three prices serve a whole fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from shardwise.evidence.serving.loop import (
    ClosedLoop,
    LoopSteps,
    LoopTimes,
    PoolTimes,
    loop_times,
    pool_times,
    tokens_per_step,
)
from shardwise.evidence.serving.runs import ServingRun, ServingTable
from shardwise.hardware import Placement, Slice
from shardwise.hardware.boxes import boxes
from shardwise.models import ModelConfig
from shardwise.planner.serve.count import step_work
from shardwise.planner.serve.memory import kv_bytes_per_device, weight_bytes_per_device
from shardwise.planner.serve.server import compute_dtypes, place_mesh
from shardwise.planner.serve.shape import ServeShape
from shardwise.plans.serve import CHECKPOINT, ServeDtypes
from shardwise.roofline import price
from shardwise.roofline.engines import (
    BYTE_READS,
    DISPATCH_SECONDS,
    EXPERT_RATE,
    IDEAL_ENGINE,
    EngineConstants,
    ahead,
)
from shardwise.scheduling.step import StepShape
from shardwise.units import format_gib
from shardwise.work import Quantity, grouped

_ALONE = replace(
    IDEAL_ENGINE,
    hops=0.0,
    dispatch_seconds=DISPATCH_SECONDS,
    experts=EXPERT_RATE,
    byte_reads=BYTE_READS,
)
_PROBES = (_ALONE, replace(_ALONE, kernel_seconds=1e-6), replace(_ALONE, hops=1.0))

_SHARES = (1.0, 0.7, 0.4, 0.15)
"""Shares of a decode server's requests at which its step is priced where others prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFeatures:
    """A step as `fixed + kernels * kernel_seconds + latency * hops + sequences *
    sequence_seconds`; arrays over runs."""

    fixed: np.ndarray
    kernels: np.ndarray
    latency: np.ndarray
    sequences: np.ndarray

    def seconds(self, engine: EngineConstants) -> np.ndarray:
        """Seconds of the step with an engine's constants, numbers or arrays over runs."""
        return (
            self.fixed
            + self.kernels * engine.kernel_seconds
            + self.latency * engine.hops
            + self.sequences * engine.sequence_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFeatures:
    """Runs with the features of their steps; all arrays are over `runs`.

    `decode` are the features of a decode step at the `running` sequences beside them, one row of
    either per share of `_SHARES`; the first is of all that are in flight. `full` is a step of as
    many prompts as the token budget holds.
    """

    runs: tuple[ServingRun, ...]
    loop: ClosedLoop
    running: tuple[np.ndarray, ...]
    decode: tuple[StepFeatures, ...]
    mixed: StepFeatures
    prompt: StepFeatures
    full: StepFeatures

    def times(self, engine: EngineConstants) -> LoopTimes:
        """TTFT and TPOT of every run; a run of kind "step" is one batch, and nothing else comes."""
        drafts = np.array([float(run.drafts) for run in self.runs])
        yields = tokens_per_step(drafts, engine.arrival.acceptance)
        equal = np.array([run.shortest == 1 for run in self.runs])
        loop = replace(self.loop, yields=yields, kernels=self.prompt.kernels)
        decode = self.decode[0].seconds(engine)
        started = self.prompt.kernels * engine.arrival.start_seconds
        prompt = np.asarray(ahead(self.prompt.seconds(engine), started))
        if self.runs[0].prefill is not None:
            return pool_times(self._pools(loop, prompt, engine), engine)
        steps = LoopSteps(
            decode=decode,
            mixed=self.mixed.seconds(engine),
            prompt=prompt,
            full=ahead(self.full.seconds(engine), started),
        )
        looped = loop_times(loop, steps, engine, equal)
        alone = np.array([run.kind == "step" for run in self.runs])
        return LoopTimes(
            ttft=np.where(alone, prompt * loop.chunks, looped.ttft),
            tpot=np.where(alone, decode, looped.tpot),
        )

    def _pools(self, loop: ClosedLoop, prompt: np.ndarray, engine: EngineConstants) -> PoolTimes:
        steps = [step.seconds(engine) for step in self.decode]
        return PoolTimes(
            loop=loop,
            servers=np.array([float(run.workers) for run in self.runs]),
            prefill_servers=np.array(
                [float(run.prefill.workers) for run in self.runs if run.prefill]
            ),
            prompt=prompt,
            full=self.full.seconds(engine),
            decode=lambda running: _between(running, self.running, steps),
        )


def _between(
    at: Quantity, places: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> np.ndarray:
    """Values at falling places along lines; beyond the ends, those of the ends."""
    at = np.clip(at, places[-1], places[0])
    found = values[-1]
    for i in reversed(range(len(places) - 1)):
        low, high = places[i + 1], places[i]
        share = (at - low) / np.maximum(high - low, 1e-9)
        found = np.where(at >= low, values[i + 1] + share * (values[i] - values[i + 1]), found)
    return np.where(at >= places[0], values[0], found)


def features(
    runs: Sequence[ServingRun], progress: Callable[[int, int], None] | None = None
) -> list[RunFeatures]:
    """The features of runs, together where only their software, servers' numbers, concurrency and
    lengths differ."""
    found: list[RunFeatures] = []
    for group in grouped(runs, _alike).values():
        found.append(_features(group))
        if progress is not None:
            progress(sum(len(f.runs) for f in found), len(runs))
    return found


def _alike(r: ServingRun) -> tuple:
    """What runs share whose steps are counted together."""
    prefill = r.prefill and (str(r.prefill.piece), r.prefill.tensor, r.prefill.data)
    model = (r.model, r.weights, r.kv, r.drafts, r.kind)
    return (*model, str(r.piece), r.tensor, r.data, prefill)


def fitting(table: ServingTable) -> ServingTable:
    """The table without runs whose weights alone are more than the memory of a device, which no
    engine has run as the row says."""
    kept, left_out, first = set[str](), dict(table.left_out), dict(table.first)
    for run, *others in grouped(table.runs, _alike).values():
        weights = weight_bytes_per_device(run.cfg, _shape(run))
        room = run.piece.chip.usable_bytes_per_device
        if weights <= room:
            kept |= {r.id for r in (run, *others)}
            continue
        reason = "weights that are more than the memory of the devices"
        left_out[reason] = left_out.get(reason, 0) + 1 + len(others)
        said = f"{format_gib(float(weights))} a device, of {format_gib(room)} that it can use"
        first.setdefault(reason, f"{run.id} does not fit: its weights are {said}")
    runs = tuple(run for run in table.runs if run.id in kept)
    return replace(table, runs=runs, left_out=left_out, first=first)


def _shape(run: ServingRun) -> ServeShape:
    """Of the servers that decode."""
    return shape_of(run, run.piece, mesh_of(run, run.tensor, run.data))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counter:
    """A server whose steps are counted and priced, for `number` runs."""

    cfg: ModelConfig
    shape: ServeShape
    piece: Slice
    placement: Placement
    number: int

    def step(self, step: StepShape) -> StepFeatures:
        """A step's seconds at three engines, which tell its linear parts."""
        work = step_work(self.cfg, self.shape, step)
        prices = [
            price(work, self.piece.chip, self.placement, stack=e.stack).expected for e in _PROBES
        ]
        fixed, kernels, latency = (self._over(t) for t in prices)
        sequences = np.asarray(step.decodes + step.prefills, float) / self.shape.splits
        return StepFeatures(
            fixed=fixed,
            kernels=(kernels - fixed) / _PROBES[1].kernel_seconds,
            latency=latency - fixed,
            sequences=self._over(sequences),
        )

    def guessing(self, loop: ClosedLoop, drafts: int) -> StepFeatures:
        """A decode step that checks `drafts` guesses, each made by one more layer and the head."""
        one = self.step(loop.decode_step())
        if not drafts:
            return one
        checked = self.step(loop.decode_step(drafts + 1.0))
        layer = drafts / sum(count for _, count in self.cfg.layer_groups())
        return StepFeatures(
            fixed=checked.fixed + layer * one.fixed,
            kernels=checked.kernels + layer * one.kernels,
            latency=checked.latency + layer * one.latency,
            sequences=checked.sequences,
        )

    def _over(self, value: Quantity) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, float), (self.number,))


def _features(runs: Sequence[ServingRun]) -> RunFeatures:
    run = runs[0]
    server = _counter(run, run.piece, run.tensor, run.data, len(runs))
    loop = loop_of(runs, server.shape)
    prefill = run.prefill
    if prefill is None:
        before, splits = server, run.data
    else:
        pool = (prefill.piece, prefill.tensor, prefill.data)
        before, splits = _counter(run, *pool, len(runs)), prefill.data
    loop = replace(loop, splits=float(splits))
    shares = _SHARES if prefill is not None else _SHARES[:1]
    loops = [
        replace(
            loop, concurrency=np.maximum(np.minimum(loop.concurrency * s, loop.most_running), 1)
        )
        for s in shares
    ]
    prompts = loop.concurrency if run.kind == "step" else np.full(len(runs), float(splits))
    return RunFeatures(
        runs=tuple(runs),
        loop=loop,
        running=tuple(np.asarray(part.running, float) for part in loops),
        decode=tuple(server.guessing(part, run.drafts) for part in loops),
        mixed=server.step(loop.mixed_step())
        if prefill is None
        else server.step(loops[0].decode_step()),
        prompt=before.step(loop.prompt_step(prompts)),
        full=before.step(loop.prompt_step(splits * loop.full_prompts)),
    )


def loop_of(runs: Sequence[ServingRun], shape: ServeShape) -> ClosedLoop:
    """What is in flight at one decode server of each run."""
    return ClosedLoop(
        concurrency=np.array([r.concurrency / r.workers for r in runs]),
        input_length=np.array([r.input_length for r in runs]),
        output_length=np.array([r.output_length for r in runs]),
        most_running=np.array([float(most_running(r, shape)) for r in runs]),
        token_budget=np.array([float(r.token_budget) for r in runs]),
        queue_interval=np.array([float(r.queue_interval) for r in runs]),
        waves=np.array([r.waves for r in runs]),
        held_steps=np.array([float(r.held_steps) for r in runs]),
        cold=np.array([float(r.cold) for r in runs]),
    )


def _counter(run: ServingRun, piece: Slice, tensor: int, data: int, number: int) -> _Counter:
    mesh = mesh_of(run, tensor, data)
    return _Counter(
        cfg=run.cfg,
        shape=shape_of(run, piece, mesh),
        piece=piece,
        placement=placement_of(piece, mesh, tensor * data),
        number=number,
    )


def mesh_of(run: ServingRun, tensor: int, data: int) -> dict[str, int]:
    """Axes of a server: attention data parallel cuts the experts of a mixture, too. Experts apart
    over the devices of tensor have the bytes that experts cut like an MLP have."""
    mesh = {"tensor": tensor, "expert" if run.mixture else "data": data}
    return {axis: degree for axis, degree in mesh.items() if degree > 1}


def shape_of(run: ServingRun, piece: Slice, mesh: dict[str, int]) -> ServeShape:
    """The run's degrees and dtypes; the batch and lengths that a step replaces."""
    activations = "f16" if run.weights == "fp16" else "bf16"
    return ServeShape(
        degrees={axis: float(degree) for axis, degree in mesh.items()},
        batch=1.0,
        input_length=run.longest_input,
        output_length=run.longest_output,
        prefill_chunk=run.longest_input,
        kv_sharding="heads",
        dtypes=ServeDtypes(
            weights=CHECKPOINT, kv=run.kv, activations=activations, compute=activations
        ),
        compute_of=compute_dtypes(piece.chip),
    )


def placement_of(piece: Slice, mesh: dict[str, int], devices: int) -> Placement:
    """The mesh over the devices of the slice."""
    axes = mesh or {"tensor": 1}
    for box in boxes(piece):
        if prod(box) * piece.count * piece.chip.jax_devices_per_chip == devices:
            return place_mesh(piece, axes, box)
    return place_mesh(piece, axes, piece.shape)


def most_running(run: ServingRun, shape: ServeShape) -> Quantity:
    """Sequences of a server whose cache fits beside the weights, at the mean length, where the run
    does not say fewer."""
    mean = int(run.input_length + run.output_length / 2)
    one = replace(shape, batch=1.0, input_length=mean, output_length=0)
    free = run.memory_share * run.piece.chip.usable_bytes_per_device - weight_bytes_per_device(
        run.cfg, one
    )
    fits = np.maximum(np.floor(free / kv_bytes_per_device(run.cfg, one)), 1.0)
    return np.minimum(fits * run.data, run.most_running)
