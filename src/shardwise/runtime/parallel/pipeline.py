"""Pipeline parallelism: the table of `scheduling.pipeline`, executed.

Each rank of the pipeline is a mesh of its own (the plan's without `stage`) that holds its chunks'
layers; each pass of the table is a compiled program on it (`passes.py`), started in the order of
the table as soon as what it needs was started. Programs run asynchronously: ranks work at the same
time, and activations go from mesh to mesh by `jax.device_put`. All other strategies work inside a
stage as they do without one. Gradients are summed over the data axes in every backward pass.

The embedding lies with the first stage and the head with the last; a tied embedding lies with both,
and DualPipe keeps every stage twice: gradients of copies are added, so that copies stay equal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from shardwise.models import ModelConfig, Parameter
from shardwise.plans.train import TrainPlan
from shardwise.runtime.call import Call
from shardwise.runtime.init import padded_shape, rows_tree, stacked_shape
from shardwise.runtime.model import call_of, cross_entropy, embed, head
from shardwise.runtime.options import Options
from shardwise.runtime.parallel.context import dealt, zigzag
from shardwise.runtime.parallel.data import optimizer_spec, running_spec
from shardwise.runtime.parallel.passes import Passes, passes
from shardwise.runtime.parallel.setup import Setup, TensorMatmul
from shardwise.runtime.parallel.step import count_of, options_for
from shardwise.runtime.parallel.tensor import stream_spec
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.sharding import batch_sharding
from shardwise.runtime.stack import run_stack
from shardwise.scheduling import pipeline_schedule
from shardwise.scheduling.pipeline import Action, Schedule, ready_order

Batch = Mapping[str, jax.Array]
FIRST = ("embedding", "embedding.in", "positions", "norm.embedding")
LAST = ("norm.final", "embedding.out", "lm_head", "embedding")
Tree = Any
"""Parameters of a rank: {"outside": {name: w}, "chunks": (layers of chunk 0, ...)}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A plan with stages: its table, a mesh for every rank, and its programs once they are made.

    `bounds[stage]` are the first layer and the one after the last of a global stage, `outside` the
    names of the parameters outside the stack that it reads.
    """

    plan: TrainPlan
    cfg: ModelConfig
    schedule: Schedule
    setups: tuple[Setup, ...]
    bounds: tuple[tuple[int, int], ...]
    outside: tuple[tuple[str, ...], ...]
    programs: dict[tuple[int, int], Passes] = field(default_factory=dict)

    def setup(self, rank: int) -> Setup:
        """The part of the mesh that one rank is."""
        return self.setups[rank]

    def stages_of(self, rank: int) -> list[int]:
        """The global stage of each chunk of a rank."""
        schedule = self.schedule
        return [schedule.stage_of(rank, chunk) for chunk in range(schedule.chunks)]

    def part(self, rank: int, tree: Tree) -> Tree:
        """A rank's part of a whole parameter tree (rows, or arrays, cut between layers)."""
        stages, bounds = self.stages_of(rank), self.bounds
        names = [n for n in tree if any(n in self.outside[s] for s in stages)]
        chunks = tuple(self._layers(tree, *bounds[s]) for s in stages)
        return {"outside": {n: tree[n] for n in names}, "chunks": chunks}

    def _layers(self, tree: Tree, first: int, last: int) -> tuple[Tree, ...]:
        parts = []
        for group, layers in enumerate(tree["layers"]):
            start, stop = (self.cfg.pattern[:at].count(group) for at in (first, last))
            cut = partial(_between, start=start, stop=stop)
            parts.append(jax.tree.map(cut, layers) if stop > start else {})
        return tuple(parts)

    def rows(self, rank: int) -> Tree:
        """The rows of the parameter table in the places of a rank's arrays."""
        return self.part(rank, rows_tree(self.cfg))

    def copies(self) -> list[list[tuple[int, Any]]]:
        """Places that hold the same parameters: (rank, outside name or chunk number)."""
        schedule, found = self.schedule, []
        for stage in range(schedule.global_stages):
            held = [
                (rank, chunk)
                for rank in range(schedule.stages)
                for chunk, s in enumerate(self.stages_of(rank))
                if s == stage
            ]
            found.append(held)
        for name in rows_tree(self.cfg):
            ranks = [r for r in range(schedule.stages) if name in self.rows(r)["outside"]]
            if ranks:
                found.append([(rank, name) for rank in ranks])
        return found


def pipeline_of(
    plan: TrainPlan,
    cfg: ModelConfig,
    mesh: jax.sharding.Mesh,
    tensor_matmul: TensorMatmul = "plain",
) -> Pipeline:
    """The pipeline of a plan, nothing compiled yet."""
    schedule = pipeline_schedule(
        plan.pipeline_schedule, plan.degree("stage"), plan.microbatches, plan.virtual_stages
    )
    return Pipeline(
        plan=plan,
        cfg=cfg,
        schedule=schedule,
        setups=tuple(
            Setup(plan=plan, cfg=cfg, mesh=_rank_mesh(mesh, rank), tensor_matmul=tensor_matmul)
            for rank in range(schedule.stages)
        ),
        bounds=_bounds(plan, schedule),
        outside=tuple(
            _outside(cfg, stage == 0, stage == schedule.global_stages - 1)
            for stage in range(schedule.global_stages)
        ),
    )


def _rank_mesh(mesh: jax.sharding.Mesh, rank: int) -> jax.sharding.Mesh:
    axes = {name: n for name, n in mesh.shape.items() if name != "stage"} or {"data": 1}
    at = [slice(None)] * mesh.devices.ndim
    at[mesh.axis_names.index("stage")] = slice(rank, rank + 1)
    devices = mesh.devices[tuple(at)].reshape(tuple(axes.values()))
    return jax.sharding.Mesh(devices, tuple(axes))


def _bounds(plan: TrainPlan, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Layers in order; a rank's are dealt to its chunks as evenly as they go (as the planner's
    `layers_of_stages`)."""
    found, at = [], 0
    pieces = schedule.global_stages // schedule.stages
    for stage in range(schedule.global_stages):
        rank, chunk = schedule.place_of(stage, 0)
        held = plan.layers_per_stage[rank]
        here = held // pieces + (chunk < held % pieces)
        found.append((at, at + here))
        at += here
    return tuple(found)


def _outside(cfg: ModelConfig, first: bool, last: bool) -> tuple[str, ...]:
    here = FIRST if first else ()
    if last:
        here = (*here, *(LAST if cfg.tied_embeddings else LAST[:-1]))
    names = [name for name in rows_tree(cfg) if name != "layers"]
    return tuple(n for n in names if n in here or n.removesuffix(".bias") in here)


def _between(leaf: Any, start: int, stop: int) -> Any:
    return leaf if isinstance(leaf, Parameter) else leaf[start:stop]


def layout(pipe: Pipeline, rank: int, spec: Any) -> Tree:
    """The tree of NamedShardings of a rank; `spec(row, setup)` is a PartitionSpec."""
    setup = pipe.setup(rank)
    return jax.tree.map(lambda row: setup.sharding(spec(row, setup)), pipe.rows(rank))


def stored_spec(row: Parameter, setup: Setup) -> Any:
    """How parameters lie between steps."""
    return setup.stored(row)


def place(pipe: Pipeline, params: Tree) -> tuple[Tree, ...]:
    """Whole parameters -> every rank's own, padded and on its devices."""

    def put(row: Parameter, sharding: NamedSharding, w: jax.Array) -> jax.Array:
        first = 0 if row.group is None else 1
        want = padded_shape(row, sharding)[first:]
        more = [(0, 0)] * first + [(0, n - m) for n, m in zip(want, w.shape[first:], strict=True)]
        return jax.device_put(jnp.pad(w, more), sharding)

    return tuple(
        jax.tree.map(put, pipe.rows(r), layout(pipe, r, stored_spec), pipe.part(r, params))
        for r in range(pipe.schedule.stages)
    )


def whole(pipe: Pipeline, ranks: tuple[Tree, ...]) -> Tree:
    """The inverse: one tree on the host, of the first copy of everything, the padding cut off."""
    rows, schedule, layers = rows_tree(pipe.cfg), pipe.schedule, []
    held = [schedule.place_of(stage, 0) for stage in range(schedule.global_stages)]
    chunks = [ranks[rank]["chunks"][chunk] for rank, chunk in held]
    for group, names in enumerate(rows["layers"]):
        parts = {
            name: [np.asarray(c[group][name]) for c in chunks if name in c[group]] for name in names
        }
        layers.append({n: _cut(rows["layers"][group][n], np.concatenate(parts[n])) for n in names})
    tree: Tree = {"layers": tuple(layers)}
    for name in rows:
        if name != "layers":
            rank = next(r for r in ranks if name in r["outside"])
            tree[name] = _cut(rows[name], np.asarray(rank["outside"][name]))
    return tree


def _cut(row: Parameter, w: np.ndarray) -> np.ndarray:
    return w[tuple(map(slice, stacked_shape(row)))]


class Run:
    """One step under way: what was kept, what was sent, and the sums so far."""

    def __init__(self, pipe: Pipeline, params: tuple[Tree, ...], parts: list[list[Batch]]):
        self.pipe, self.params, self.parts = pipe, params, parts
        self.schedule = pipe.schedule
        self.kept: dict[tuple[int, int, int], Any] = {}
        self.left: dict[tuple[int, int, int], Any] = {}
        self.sent: dict[tuple[str, int, int], jax.Array] = {}
        self.losses: list[jax.Array] = []
        self.sums = [_zeros(pipe, rank, params[rank]) for rank in range(self.schedule.stages)]

    def act(self, rank: int, action: Action) -> None:
        """Start one pass of the table."""
        stage = self.schedule.stage_of(rank, action.chunk)
        at = (rank, action.chunk, action.microbatch)
        held = _held(self.pipe, self.params[rank], stage, action.chunk)
        program = self.pipe.programs[rank, action.chunk]
        match action.kind:
            case "F":
                x = self._receive("F", stage, action.microbatch)
                extra = self.parts[rank][action.microbatch]
                out, self.kept[at] = program.forward(held, x, extra)
                self._send("F", stage + 1, action.microbatch, out)
            case "B":
                ct = self._receive("B", stage, action.microbatch)
                if program.weights is None:
                    kept = self.kept.pop(at)
                    sums = _held(self.pipe, self.sums[rank], stage, action.chunk)
                    dx, sums = program.backward(held, kept, ct, sums)
                    self._add(rank, action.chunk, sums)
                else:
                    dx, left = program.backward(held, self.kept[at], ct)
                    self.left[at] = ct, left
                self._send("B", stage - 1, action.microbatch, dx)
            case _:
                assert program.weights is not None
                sums = _held(self.pipe, self.sums[rank], stage, action.chunk)
                sums = program.weights(held, self.kept.pop(at), *self.left.pop(at), sums)
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
        return _zero_stream(self.pipe, rank)

    def _send(self, kind: str, stage: int, microbatch: int, x: jax.Array) -> None:
        if stage == self.schedule.global_stages:
            self.losses.append(x)
        elif stage >= 0:
            rank, _ = self.schedule.place_of(stage, microbatch)
            x = jax.device_put(x, stream_sharding(self.pipe.setup(rank)))
            self.sent[kind, stage, microbatch] = x


def _held(pipe: Pipeline, tree: Tree, stage: int, chunk: int) -> Tree:
    """What one chunk reads of a rank's tree, in the shape that the model takes."""
    outside = {name: tree["outside"][name] for name in pipe.outside[stage]}
    return {**outside, "layers": tree["chunks"][chunk]}


def stream_sharding(setup: Setup) -> NamedSharding:
    """How x[B, T, D] lies where it enters a stage."""
    return setup.sharding(stream_spec(setup))


def _zero_stream(pipe: Pipeline, rank: int) -> jax.Array:
    shape = stream_shape(pipe)
    zeros = jnp.zeros(shape.shape, shape.dtype)
    return jax.device_put(zeros, stream_sharding(pipe.setup(rank)))


def stream_shape(pipe: Pipeline) -> jax.ShapeDtypeStruct:
    """x[B, T, D] of one microbatch."""
    p = pipe.plan
    b = p.global_batch_sequences // p.microbatches
    return jax.ShapeDtypeStruct(
        (b, p.sequence_length, pipe.cfg.d_model), dtype_of(p.dtypes.compute)
    )


def _zeros(pipe: Pipeline, rank: int, params: Tree) -> Tree:
    dtype = dtype_of(pipe.plan.dtypes.grad)
    specs = layout(pipe, rank, running_spec)
    return jax.tree.map(lambda w, s: jnp.zeros(w.shape, dtype, device=s), params, specs)


def loss_and_grads(pipe: Pipeline, params: tuple[Tree, ...], batch: Batch) -> tuple[Any, Any]:
    """Run the table once: the loss and every rank's gradients, as the optimizer's pieces."""
    schedule = pipe.schedule
    parts = [list(_microbatches(pipe, rank, batch)) for rank in range(schedule.stages)]
    if not pipe.programs:
        _compile(pipe, params, parts)
    run = Run(pipe, params, parts)
    for rank, action in ready_order(schedule):
        run.act(rank, action)
    assert not run.sent
    assert not run.kept
    home = run.losses[0].sharding
    loss = sum(jax.device_put(x, home) for x in run.losses[1:]) + run.losses[0]
    return loss, tuple(_finished(pipe, _shared(pipe, run.sums)))


def _microbatches(pipe: Pipeline, rank: int, batch: Batch) -> Iterator[Batch]:
    """The microbatches on one rank's devices, and beside each the count of the whole batch."""
    setup, plan = pipe.setup(rank), pipe.plan
    host = {name: np.asarray(x) for name, x in dealt(batch, plan, pipe.cfg).items()}
    count = np.asarray(count_of(batch))
    for i in range(plan.microbatches):
        part = {name: x[i :: plan.microbatches] for name, x in host.items()}
        placed = jax.device_put(part, batch_sharding(setup.mesh))
        yield {**placed, "count": jax.device_put(count)}


def _compile(pipe: Pipeline, params: tuple[Tree, ...], parts: list[list[Batch]]) -> None:
    """Trace the programs of every chunk; they are compiled when first run."""
    schedule, bounds = pipe.schedule, pipe.bounds
    for rank in range(schedule.stages):
        setup = pipe.setup(rank)
        options = options_for(setup)
        if schedule.splits_backward:
            options = replace(options, scan=False)
        for chunk, stage in enumerate(pipe.stages_of(rank)):
            rows = _held(pipe, pipe.rows(rank), stage, chunk)
            specs = jax.tree.map(lambda r, s=setup: s.sharding(running_spec(r, s)), rows)
            pipe.programs[rank, chunk] = passes(
                _chunk(pipe, stage, bounds[stage], options),
                (_held(pipe, params[rank], stage, chunk), stream_shape(pipe), parts[rank][0]),
                split=schedule.splits_backward,
                lay=partial(_lay, specs=specs),
            )


def _lay(tree: Tree, specs: Tree) -> Tree:
    return jax.tree.map(lax.with_sharding_constraint, tree, specs)


def _chunk(pipe: Pipeline, stage: int, bounds: tuple[int, int], options: Options) -> Any:
    """(params, x, microbatch) -> x after the chunk, or its share of the loss after the last."""
    cfg, in_order = pipe.cfg, not zigzag(pipe.plan, pipe.cfg)
    last = stage == pipe.schedule.global_stages - 1

    def run(params: Tree, x_BTD: jax.Array, part: Batch) -> jax.Array:
        call: Call = call_of(
            part["tokens"],
            cfg,
            options,
            part.get("positions"),
            part.get("segments"),
            in_order=in_order,
        )
        if stage == 0:
            x_BTD = x_BTD + embed(params, part["tokens"], cfg, call)
        x_BTD, _ = run_stack(params["layers"], x_BTD, cfg, call, first=bounds[0], last=bounds[1])
        if not last:
            return options.at("block_input", x_BTD)
        logits_BTV = head(params, x_BTD, cfg, call)
        nats, _ = cross_entropy(logits_BTV, part["targets"], part.get("weights"))
        return nats / part["count"].astype(nats.dtype)

    return run


def _shared(pipe: Pipeline, sums: list[Tree]) -> list[Tree]:
    """Gradients of copies added up, the same sum in every place."""
    for places in pipe.copies():
        if len(places) == 1:
            continue
        parts = [_at(sums[rank], key) for rank, key in places]
        for (rank, key), mine in zip(places, parts, strict=True):
            home = jax.tree.map(lambda g: g.sharding, mine)
            others = [jax.device_put(p, home) for p in parts if p is not mine]
            total = jax.tree.map(lambda *gs: sum(gs[1:], gs[0]), mine, *others)
            sums[rank] = _with(sums[rank], key, total)
    return sums


def _at(tree: Tree, key: Any) -> Any:
    return tree["outside"][key] if isinstance(key, str) else tree["chunks"][key]


def _with(tree: Tree, key: Any, value: Any) -> Tree:
    if isinstance(key, str):
        return {**tree, "outside": {**tree["outside"], key: value}}
    chunks = tree["chunks"]
    return {**tree, "chunks": (*chunks[:key], value, *chunks[key + 1 :])}


def _finished(pipe: Pipeline, sums: list[Tree]) -> Iterator[Tree]:
    for rank, tree in enumerate(sums):
        yield jax.device_put(tree, layout(pipe, rank, optimizer_spec))


def first_copies(pipe: Pipeline, ranks: tuple[Tree, ...]) -> list[Tree]:
    """Every rank's tree without what another rank or chunk before has too."""
    kept = list(ranks)
    for places in pipe.copies():
        for rank, key in places[1:]:
            kept[rank] = _with(kept[rank], key, {})
    return kept
