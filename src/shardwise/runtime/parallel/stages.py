"""What a pipeline is made of: which layers lie on which rank, and how they come there.

Each rank of the pipeline is a mesh of its own, the plan's without `stage`, that holds the layers of
its chunks. The embedding lies with the first stage and the head with the last; a tied embedding
lies with both, and a mirrored schedule keeps every stage twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from shardwise.models import ModelConfig, Parameter
from shardwise.plans.train import TrainPlan
from shardwise.runtime.init import padded_shape, rows_tree, stacked_shape
from shardwise.runtime.parallel.passes import ChunkPrograms
from shardwise.runtime.parallel.setup import Setup, TensorMatmul
from shardwise.runtime.precision import dtype_of
from shardwise.scheduling import pipeline_schedule
from shardwise.scheduling.pipeline import Schedule

FIRST = ("embedding", "embedding.in", "positions", "norm.embedding")
LAST = ("norm.final", "embedding.out", "lm_head", "embedding")
Tree = Any
"""Parameters of a rank: {"outside": {name: w}, "chunks": (layers of chunk 0, ...)}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePipeline:
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
    programs: dict[tuple[int, int], ChunkPrograms] = field(default_factory=dict)
    reductions: list[Callable[[Tree], Tree]] = field(default_factory=list)

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
) -> StagePipeline:
    """The pipeline of a plan, nothing compiled yet."""
    schedule = pipeline_schedule(
        plan.pipeline_schedule, plan.degree("stage"), plan.microbatches, plan.virtual_stages
    )
    return StagePipeline(
        plan=plan,
        cfg=cfg,
        schedule=schedule,
        setups=tuple(
            Setup(plan=plan, cfg=cfg, mesh=_rank_mesh(mesh, rank), tensor_matmul=tensor_matmul)
            for rank in range(schedule.stages)
        ),
        bounds=schedule.bounds(plan.layers_per_stage),
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


def _outside(cfg: ModelConfig, first: bool, last: bool) -> tuple[str, ...]:
    here = FIRST if first else ()
    if last:
        here = (*here, *(LAST if cfg.tied_embeddings else LAST[:-1]))
    names = [name for name in rows_tree(cfg) if name != "layers"]
    return tuple(n for n in names if n in here or n.removesuffix(".bias") in here)


def _between(leaf: Any, start: int, stop: int) -> Any:
    return leaf if isinstance(leaf, Parameter) else leaf[start:stop]


def layout(pipe: StagePipeline, rank: int, spec: Any) -> Tree:
    """The tree of NamedShardings of a rank; `spec(row, setup)` is a PartitionSpec."""
    setup = pipe.setup(rank)
    return jax.tree.map(lambda row: setup.sharding(spec(row, setup)), pipe.rows(rank))


def stored_spec(row: Parameter, setup: Setup) -> Any:
    """How parameters lie between steps."""
    return setup.stored(row)


def place(pipe: StagePipeline, params: Tree) -> tuple[Tree, ...]:
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


def whole(pipe: StagePipeline, ranks: tuple[Tree, ...]) -> Tree:
    """The inverse: one tree on the host, of the first copy of everything, the padding cut off."""
    rows, schedule, layers = rows_tree(pipe.cfg), pipe.schedule, []
    held = [schedule.place_of(stage, 0) for stage in range(schedule.global_stages)]
    chunks = [ranks[rank]["chunks"][chunk] for rank, chunk in held]
    for group, names in enumerate(rows["layers"]):
        parts = {
            name: [np.asarray(c[group][name]) for c in chunks if name in c[group]] for name in names
        }
        layers.append({n: cut(rows["layers"][group][n], np.concatenate(parts[n])) for n in names})
    tree: Tree = {"layers": tuple(layers)}
    for name in rows:
        if name != "layers":
            rank = next(r for r in ranks if name in r["outside"])
            tree[name] = cut(rows[name], np.asarray(rank["outside"][name]))
    return tree


def cut(row: Parameter, w: Any) -> Any:
    """A weight without what the mesh adds to its lengths."""
    return w[tuple(map(slice, stacked_shape(row)))]


def held(pipe: StagePipeline, tree: Tree, stage: int, chunk: int) -> Tree:
    """What one chunk reads of a rank's tree, in the shape that the model takes."""
    outside = {name: tree["outside"][name] for name in pipe.outside[stage]}
    return {**outside, "layers": tree["chunks"][chunk]}


def stream_sharding(setup: Setup) -> NamedSharding:
    """How x[B, T, D] lies where it enters a stage."""
    return setup.sharding(setup.stream)


def stream_shape(pipe: StagePipeline) -> jax.ShapeDtypeStruct:
    """x[B, T, D] of one microbatch."""
    p = pipe.plan
    b = p.global_batch_sequences // p.microbatches
    return jax.ShapeDtypeStruct(
        (b, p.sequence_length, pipe.cfg.d_model), dtype_of(p.dtypes.compute)
    )


def part_of(tree: Tree, key: Any) -> Any:
    return tree["outside"][key] if isinstance(key, str) else tree["chunks"][key]


def replaced(tree: Tree, key: Any, value: Any) -> Tree:
    if isinstance(key, str):
        return {**tree, "outside": {**tree["outside"], key: value}}
    chunks = tree["chunks"]
    return {**tree, "chunks": (*chunks[:key], value, *chunks[key + 1 :])}


def first_copies(pipe: StagePipeline, ranks: tuple[Tree, ...]) -> list[Tree]:
    """Every rank's tree without what another rank or chunk before has too."""
    kept = list(ranks)
    for places in pipe.copies():
        for rank, key in places[1:]:
            kept[rank] = replaced(kept[rank], key, {})
    return kept
