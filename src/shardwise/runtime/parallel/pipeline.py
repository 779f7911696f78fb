"""StagePipeline parallelism: the table of `scheduling.pipeline`, executed.

Each rank of the pipeline is a mesh of its own (`stages.py`); each pass of the table is a compiled
program on it (`chunks.py`, `passes.py`), started in the order of the table as soon as what it needs
was started. Programs run asynchronously: ranks work at the same time, and activations go from mesh
to mesh by `jax.device_put`. All other strategies work inside a stage as they do without one.

Gradients of what lies in several places (a tied embedding, both copies of a stage) are added at
the end of the step, so that copies stay equal.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.runtime.parallel.chunks import deferred_count, programs, zero_sums
from shardwise.runtime.parallel.context import dealt
from shardwise.runtime.parallel.data import optimizer_spec
from shardwise.runtime.parallel.packing import with_documents
from shardwise.runtime.parallel.stages import (
    StagePipeline,
    Tree,
    held,
    layout,
    part_of,
    replaced,
    stream_shape,
    stream_sharding,
)
from shardwise.runtime.parallel.step import count_of
from shardwise.runtime.sharding import batch_sharding
from shardwise.scheduling.pipeline import Action, ready_order

Batch = Mapping[str, jax.Array]


class PipelineRun:
    """One step under way: what was kept, what was sent, and the sums so far."""

    def __init__(self, pipe: StagePipeline, params: tuple[Tree, ...], parts: list[list[Batch]]):
        self.pipe, self.params, self.parts = pipe, params, parts
        self.schedule = pipe.schedule
        self.kept: dict[tuple[int, int, int], Any] = {}
        self.left: dict[tuple[int, int, int], Any] = {}
        self.sent: dict[tuple[str, int, int], jax.Array] = {}
        self.losses: list[jax.Array] = []
        self.sums = [
            zero_sums(setup, pipe.rows(rank), params[rank])
            for rank, setup in enumerate(pipe.setups)
        ]

    def act(self, rank: int, action: Action) -> None:
        """Start one pass of the table."""
        stage = self.schedule.stage_of(rank, action.chunk)
        at = (rank, action.chunk, action.microbatch)
        params = held(self.pipe, self.params[rank], stage, action.chunk)
        program = self.pipe.programs[rank, action.chunk]
        match action.kind:
            case "F":
                x = self._receive("F", stage, action.microbatch)
                extra = self.parts[rank][action.microbatch]
                out, self.kept[at] = program.forward(params, x, extra)
                self._send("F", stage + 1, action.microbatch, out)
            case "B":
                ct = self._receive("B", stage, action.microbatch)
                if program.weights is None:
                    kept = self.kept.pop(at)
                    sums = held(self.pipe, self.sums[rank], stage, action.chunk)
                    dx, sums = program.backward(params, kept, ct, sums)
                    self._add(rank, action.chunk, sums)
                else:
                    dx, left = program.backward(params, self.kept[at], ct)
                    self.left[at] = ct, left
                self._send("B", stage - 1, action.microbatch, dx)
            case _:
                assert program.weights is not None
                sums = held(self.pipe, self.sums[rank], stage, action.chunk)
                sums = program.weights(params, self.kept.pop(at), *self.left.pop(at), sums)
                self._add(rank, action.chunk, sums)

    def _add(self, rank: int, chunk: int, new: Tree) -> None:
        sums = self.sums[rank]
        outside = {**sums["outside"], **{n: w for n, w in new.items() if n != "layers"}}
        chunks = (*sums["chunks"][:chunk], new["layers"], *sums["chunks"][chunk + 1 :])
        self.sums[rank] = {"outside": outside, "chunks": chunks}

    def _receive(self, kind: str, stage: int, microbatch: int) -> jax.Array:
        if kind == "F" and stage == 0:
            return self._start(microbatch)
        if kind == "B" and stage == self.schedule.global_stages - 1:
            return jnp.ones((), self.losses[0].dtype)
        return self.sent.pop((kind, stage, microbatch))

    def _start(self, microbatch: int) -> jax.Array:
        """Zeros, to which the first stage adds the embedding: so its dX is a pass like any."""
        rank, _ = self.schedule.place_of(0, microbatch)
        shape = stream_shape(self.pipe)
        return jnp.zeros(shape.shape, shape.dtype, device=stream_sharding(self.pipe.setup(rank)))

    def _send(self, kind: str, stage: int, microbatch: int, x: jax.Array) -> None:
        if stage == self.schedule.global_stages:
            self.losses.append(x)
        elif stage >= 0:
            rank, _ = self.schedule.place_of(stage, microbatch)
            x = jax.device_put(x, stream_sharding(self.pipe.setup(rank)))
            self.sent[kind, stage, microbatch] = x


def loss_and_grads(pipe: StagePipeline, params: tuple[Tree, ...], batch: Batch) -> tuple[Any, Any]:
    """Run the table once: the loss and every rank's gradients, as the optimizer's pieces."""
    schedule = pipe.schedule
    parts = [list(microbatches(pipe, rank, batch)) for rank in range(schedule.stages)]
    if not pipe.programs:
        pipe.programs.update(programs(pipe, params, [mine[0] for mine in parts]))
        pipe.reductions.extend(
            jax.jit(reduction(pipe, r), donate_argnums=0) for r in range(schedule.stages)
        )
    run = PipelineRun(pipe, params, parts)
    for rank, action in ready_order(schedule):
        run.act(rank, action)
    assert not run.sent
    assert not run.kept
    home = run.losses[0].sharding
    loss = sum(jax.device_put(x, home) for x in run.losses[1:]) + run.losses[0]
    grads = [reduce(sums) for reduce, sums in zip(pipe.reductions, run.sums, strict=True)]
    return loss, tuple(_shared(pipe, grads))


def microbatches(pipe: StagePipeline, rank: int, batch: Batch) -> Iterator[Batch]:
    """The microbatches on one rank's devices, and beside each the count of the whole batch."""
    setup, plan = pipe.setup(rank), pipe.plan
    told = with_documents(batch, plan)
    host = {name: np.asarray(x) for name, x in dealt(told, plan, pipe.cfg).items()}
    count = np.asarray(count_of(batch))
    for i in range(plan.microbatches):
        part = {name: x[i :: plan.microbatches] for name, x in host.items()}
        placed = jax.device_put(part, batch_sharding(setup.mesh))
        yield {**placed, "count": jax.device_put(count)}


def reduction(pipe: StagePipeline, rank: int) -> Any:
    """A rank's sums -> its gradients in the optimizer's pieces: what was left for the end."""
    several, pieces = deferred_count(pipe.setup(rank)), layout(pipe, rank, optimizer_spec)

    @jax.named_scope("gradients")
    def reduce(sums: Tree) -> Tree:
        if several:
            sums = jax.tree.map(lambda g: g.sum(0), sums)
        return jax.tree.map(lax.with_sharding_constraint, sums, pieces)

    return reduce


def _shared(pipe: StagePipeline, grads: list[Tree]) -> list[Tree]:
    """Gradients of copies added up, the same sum in every place."""
    for places in pipe.copies():
        if len(places) == 1:
            continue
        parts = [part_of(grads[rank], key) for rank, key in places]
        for (rank, key), mine in zip(places, parts, strict=True):
            home = jax.tree.map(lambda g: g.sharding, mine)
            others = [jax.device_put(p, home) for p in parts if p is not mine]
            total = jax.tree.map(lambda *gs: sum(gs[1:], gs[0]), mine, *others)
            grads[rank] = replaced(grads[rank], key, total)
    return grads
