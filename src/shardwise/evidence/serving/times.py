"""Predict a published serving run: its steps as Work, priced, and the closed loop of its requests.

With an engine's constants linear in every step, `features` holds what multiplies them, so that one
count and three prices serve a whole fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from shardwise.evidence.serving.loop import ClosedLoop, LoopTimes, loop_times
from shardwise.evidence.serving.runs import ServingRun
from shardwise.hardware import Chip, Placement
from shardwise.hardware.boxes import boxes
from shardwise.models import ModelConfig
from shardwise.planner.serve.count import step_work
from shardwise.planner.serve.memory import kv_bytes_per_device, weight_bytes_per_device
from shardwise.planner.serve.server import compute_dtypes, place_mesh, usable_bytes
from shardwise.planner.serve.shape import ServeShape
from shardwise.plans.serve import CHECKPOINT, ServeDtypes
from shardwise.roofline import price
from shardwise.roofline.engines import IDEAL_ENGINE, Engine
from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity, grouped

MEMORY_SHARE = 0.9
"""Share of the memory that engines take: vLLM's `gpu_memory_utilization`, 0.9 by default."""

_ALONE = replace(IDEAL_ENGINE, hops=0.0)
_PROBES = (_ALONE, replace(_ALONE, kernel_seconds=1e-6), replace(_ALONE, hops=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFeatures:
    """A step as `fixed + kernels * kernel_seconds + latency * hops + sequences *
    sequence_seconds`; arrays over runs."""

    fixed: np.ndarray
    kernels: np.ndarray
    latency: np.ndarray
    sequences: np.ndarray

    def seconds(self, engine: Engine) -> np.ndarray:
        """Seconds of the step with an engine's constants."""
        return (
            self.fixed
            + self.kernels * engine.kernel_seconds
            + self.latency * engine.hops
            + self.sequences * engine.sequence_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFeatures:
    """Runs with the features of their three steps; all arrays are over `runs`."""

    runs: tuple[ServingRun, ...]
    loop: ClosedLoop
    decode: StepFeatures
    mixed: StepFeatures
    prompt: StepFeatures

    def times(self, engine: Engine) -> LoopTimes:
        """TTFT and TPOT of every run; a run of kind "step" is one batch, and nothing else comes."""
        decode, prompt = self.decode.seconds(engine), self.prompt.seconds(engine)
        looped = loop_times(
            self.loop, decode, self.mixed.seconds(engine), prompt, engine.prefill_wait
        )
        alone = np.array([run.kind == "step" for run in self.runs])
        return LoopTimes(
            ttft=np.where(alone, prompt * self.loop.chunks, looped.ttft),
            tpot=np.where(alone, decode, looped.tpot),
        )


def features(
    runs: Sequence[ServingRun], progress: Callable[[int, int], None] | None = None
) -> list[RunFeatures]:
    """The features of runs, together where only their concurrency and lengths differ."""
    groups = grouped(runs, lambda r: (r.model, r.weights, r.kv, str(r.piece), r.tensor, r.kind))
    found: list[RunFeatures] = []
    for group in groups.values():
        found.append(_features(group))
        if progress is not None:
            progress(sum(len(f.runs) for f in found), len(runs))
    return found


def _features(runs: Sequence[ServingRun]) -> RunFeatures:
    run = runs[0]
    shape, placement = server_of(run), placement_of(run)
    concurrency = np.array([float(r.concurrency) for r in runs])
    loop = ClosedLoop(
        concurrency=concurrency,
        input_length=np.array([float(r.input_length) for r in runs]),
        output_length=np.array([float(r.output_length) for r in runs]),
        most_running=np.array([float(most_running(r, shape)) for r in runs]),
    )
    prompts = concurrency if run.kind == "step" else np.ones(len(runs))

    def of(step: StepShape) -> StepFeatures:
        return step_features(run.cfg, shape, step, run.piece.chip, placement, len(runs))

    return RunFeatures(
        runs=tuple(runs),
        loop=loop,
        decode=of(loop.decode_step()),
        mixed=of(loop.mixed_step()),
        prompt=of(loop.prompt_step(prompts)),
    )


def step_features(
    cfg: ModelConfig,
    shape: ServeShape,
    step: StepShape,
    chip: Chip,
    placement: Placement,
    number: int,
) -> StepFeatures:
    """A step's seconds at three engines, which tell its linear parts."""
    work = step_work(cfg, shape, step)
    found = [price(work, chip, placement, stack=e.stack).expected for e in _PROBES]
    fixed, kernels, latency = (np.broadcast_to(np.asarray(t, float), (number,)) for t in found)
    sequences = np.asarray(step.decodes + step.prefills, float) / shape.splits
    return StepFeatures(
        fixed=fixed,
        kernels=(kernels - fixed) / _PROBES[1].kernel_seconds,
        latency=latency - fixed,
        sequences=np.broadcast_to(sequences, (number,)),
    )


def server_of(run: ServingRun) -> ServeShape:
    """The run's degrees and dtypes; the batch and lengths that a step replaces."""
    activations = "f16" if run.weights == "fp16" else "bf16"
    return ServeShape(
        degrees={"tensor": float(run.tensor)} if run.tensor > 1 else {},
        batch=float(run.concurrency),
        input_length=run.input_length,
        output_length=run.output_length,
        prefill_chunk=run.input_length,
        kv_sharding="heads",
        dtypes=ServeDtypes(
            weights=CHECKPOINT, kv=run.kv, activations=activations, compute=activations
        ),
        compute_of=compute_dtypes(run.piece.chip),
    )


def placement_of(run: ServingRun) -> Placement:
    """Tensor over the devices of the run's slice."""
    piece = run.piece
    for box in boxes(piece):
        if prod(box) * piece.count * piece.chip.jax_devices_per_chip == run.tensor:
            return place_mesh(piece, {"tensor": run.tensor}, box)
    return place_mesh(piece, {"tensor": run.tensor}, piece.shape)


def most_running(run: ServingRun, shape: ServeShape) -> Quantity:
    """Sequences whose cache fits beside the weights, at the mean length."""
    mean = run.input_length + run.output_length // 2
    one = replace(shape, batch=1.0, input_length=mean, output_length=0)
    free = MEMORY_SHARE * usable_bytes(run.piece) - weight_bytes_per_device(run.cfg, one)
    return np.maximum(np.floor(free / kv_bytes_per_device(run.cfg, one)), 1.0)
