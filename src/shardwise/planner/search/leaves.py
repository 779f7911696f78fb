"""The parts of a training step on the few distinct rows of candidates that each depends on.

A layer's chain depends on the tokens of a microbatch and the inner degrees, a gather on the degrees
that store parameters, and so on. Each part is counted by `step/parts.py` and priced by `price_ops`
there, once per structural choice that it depends on; `composition.py` gathers the figures and puts
candidates together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.hardware.placement import Placement
from shardwise.models import ModelConfig, Parameter
from shardwise.planner.price.figures import Figures, figures_of
from shardwise.planner.price.memory.step import resident_bytes
from shardwise.planner.price.memory.working import (
    gathered_bytes,
    gathered_ends,
    in_transit_bytes,
    kept_bytes,
    layer_bytes,
    logit_bytes,
    module_bytes,
)
from shardwise.planner.price.seconds import forward_share, stack_for
from shardwise.planner.search.columns import Columns, Keys, Meshes, keys_of
from shardwise.planner.search.legality import batch_shards
from shardwise.planner.search.request import TrainRequest
from shardwise.planner.step.parts import (
    end_chains,
    end_rows,
    gradient_accumulation,
    gradient_reduction,
    layer_chains,
    optimizer_ops,
    parameter_casts,
    parameter_exchanges,
    step_rows,
)
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.pipeline import (
    rank_in_flight,
    stage_transfer,
    tied_reduction,
)
from shardwise.planner.step.tree import EndParts, LayerParts
from shardwise.plans.train import Structure
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.price import Known, price_ops
from shardwise.roofline.stacks import Stack
from shardwise.scheduling.pipeline import schedule_row
from shardwise.work import Op, Quantity

INNER = ("expert", "context", "tensor")
STORED = ("fsdp", *INNER)
"""Axes that the storage and the gathers of a parameter depend on."""
COPIES = ("replica", "data", *STORED)


def column_shape(request: TrainRequest, columns: Columns, structure: Structure) -> TrainShape:
    """The columns under one structural choice, as one TrainShape of arrays."""
    d = {axis: degree.astype(float) for axis, degree in columns.degrees.items()}
    layers, microbatches = request.cfg.layers, columns.microbatches.astype(float)
    return TrainShape(
        degrees={axis: v for axis, v in d.items() if np.any(v > 1)},
        sequences=request.sequences / (batch_shards(d) * microbatches),
        sequence_length=request.sequence_length,
        microbatches=microbatches,
        stage_share=np.ceil(layers / d["stage"]) / layers,
        **structure.choices,
    )


@dataclass(frozen=True, slots=True)
class OnKeys:
    """Figures of one part of a step, one for each distinct row (key) of what they depend on."""

    keys: Keys
    value: Any

    def at(self, index: np.ndarray) -> Any:
        """The value of the candidates at an index."""
        return _at(self.value, self.keys.inverse[index])


def _at(value: Any, index: np.ndarray) -> Any:
    if isinstance(value, Figures):
        return value.at(index)
    if isinstance(value, tuple):
        return tuple(_at(v, index) for v in value)
    return np.take(value, index, axis=-1) if np.ndim(value) else value


class StepParts:
    """The parts of a step of all candidates laid out in one way on one part of the slice.

    Every method makes a part once per choice that it depends on; `structure` may differ in others.
    """

    def __init__(
        self,
        request: TrainRequest,
        meshes: Meshes,
        columns: Columns,
        any_structure: Structure,
    ) -> None:
        self.request, self.meshes, self.columns = request, meshes, columns
        self.rows = step_rows(request.cfg, column_shape(request, columns, any_structure))
        self.layers = [float(n) for _, n in request.cfg.layer_groups()]
        self.groups = [[r for r in self.rows if r.group == g] for g in range(len(self.layers))]
        self.stack = stack_for(any_structure.stack, any_structure.constants)
        self.eager = any_structure.software.eager
        self._keys: dict[tuple[str, ...], Keys] = {}
        self._parts: dict[tuple, OnKeys] = {}
        self._times: dict[tuple[int, str, str], dict[Known, OpTime]] = {}
        self._placements: dict[bytes, Placement] = {}

    def layer(self, structure: Structure) -> OnKeys:
        """(forward, backward) of one layer of every group."""

        def make(columns: Columns) -> tuple[Figures, Figures]:
            shape = self._shape(columns, structure)
            chains = [
                layer_chains(self.request.cfg, group, self.rows, shape)
                for group in range(len(self.groups))
            ]
            times = [self._known(group, structure) for group in range(len(chains))]
            forward, backward = zip(*chains, strict=True)
            return (
                self._figures(columns, forward, known=times),
                self._figures(columns, backward, known=times),
            )

        choices = (structure.remat, structure.context_method, structure.paired)
        return self._made("layer", choices, (*INNER, "tokens"), make)

    def exchanges(self, structure: Structure) -> OnKeys:
        """(gathers, scatters, accumulation, casts) of one layer of every group."""

        def make(columns: Columns) -> tuple[Figures, ...]:
            shape = self._shape(columns, structure)
            moved = [parameter_exchanges(rows, shape) for rows in self.groups]
            gathers, scatters = zip(*moved, strict=True)
            summed = [gradient_accumulation(rows, shape) for rows in self.groups]
            casts = [parameter_casts(rows, shape) for rows in self.groups]
            bodies = (gathers, scatters, summed, casts)
            return tuple(self._figures(columns, ops) for ops in bodies)

        return self._made("exchanges", (structure.storage_axes,), (*STORED, "loop"), make)

    def reduction(self, structure: Structure) -> OnKeys:
        """Gradient reduction of one layer of every group."""

        def make(columns: Columns) -> Figures:
            shape = self._shape(columns, structure)
            return self._figures(columns, [gradient_reduction(g, shape) for g in self.groups])

        choices = (structure.storage_axes, structure.zero == 0)
        return self._made("reduction", choices, COPIES, make)

    def transfer(self, structure: Structure) -> OnKeys:
        """The share per layer of sending activations on, with one chunk per stage."""

        def make(columns: Columns) -> Figures:
            shape = self._shape(columns, structure)
            ops = stage_transfer(self.request.cfg, shape)
            return self._figures(columns, [ops], [float(self.request.cfg.layers)])

        return self._made("transfer", (), ("stage", "tensor", "tokens"), make)

    def ends(self, structure: Structure) -> OnKeys:
        """(first, last, forward part of last, of both) of both ends' chains."""

        def make(columns: Columns) -> tuple[Any, ...]:
            ends = end_chains(self.request.cfg, self.rows, self._shape(columns, structure))
            timed, spent, forward = [], [], []
            for end in (ends["first"], ends["last"]):
                timed.append(self._priced(columns, (*end.forward, *end.backward)))
                spent.append(sum(t.total for t in timed[-1]))
                forward.append(sum(t.total for t in timed[-1] if t.op.phase == "forward"))
            n = len(columns)
            shares = (forward_share(forward[1], spent[1]), forward_share(sum(forward), sum(spent)))
            first, last = (figures_of([ops], [1.0], n) for ops in timed)
            return (first, last, *(np.broadcast_to(share, (n,)) for share in shares))

        choices = (structure.remat, structure.context_method, structure.paired)
        return self._made("ends", choices, (*INNER, "tokens"), make)

    def end_exchanges(self, structure: Structure) -> OnKeys:
        """((gathers, scatters, accumulation, casts) of first, the same of last)."""

        def make(columns: Columns) -> tuple[tuple[Figures, ...], ...]:
            shape = self._shape(columns, structure)
            return tuple(
                tuple(
                    self._figures(columns, [ops], [1.0])
                    for ops in (
                        *parameter_exchanges(rows, shape),
                        gradient_accumulation(rows, shape),
                        parameter_casts(rows, shape),
                    )
                )
                for rows in end_rows(self.rows)
            )

        choices = (structure.storage_axes, structure.ends == "apart")
        return self._made("end exchanges", choices, (*STORED, "loop", "piped"), make)

    def end_reduction(self, structure: Structure) -> OnKeys:
        """Gradient reduction of (first, last), a tied head's among them."""

        def make(columns: Columns) -> tuple[Figures, ...]:
            shape = self._shape(columns, structure)
            return tuple(
                self._figures(
                    columns,
                    [(*gradient_reduction(rows, shape), *tied_reduction(rows, shape))],
                    [1.0],
                )
                for rows in end_rows(self.rows)
            )

        choices = (structure.storage_axes, structure.zero == 0, structure.ends == "apart")
        return self._made("end reduction", choices, ("stage", *COPIES), make)

    def optimizer(self, structure: Structure) -> OnKeys:
        """The update of the parameters of a stage."""

        def make(columns: Columns) -> Figures:
            ops = optimizer_ops(self.request.cfg, self.rows, self._shape(columns, structure))
            return self._figures(columns, [ops], [1.0])

        choices = (structure.storage_axes, structure.zero > 0, structure.ends)
        return self._made("optimizer", choices, ("stage", *COPIES), make)

    def resident(self, structure: Structure) -> OnKeys:
        """Bytes that stay on the device through the step (`resident_bytes`): on the first stage, on
        the last, on the fuller of both during the update, and a microbatch's gradients on the
        first."""

        def make(columns: Columns) -> np.ndarray:
            shape = self._shape(columns, structure)
            return np.stack(np.broadcast_arrays(*resident_bytes(self.request.cfg, shape)))

        choices = (structure.storage_axes, structure.zero, structure.ends)
        keys = ("=stage", "copies", *_SIZES, "=fsdp", "loop")
        return self._made("resident", choices, keys, make)

    def kept(self, structure: Structure) -> OnKeys:
        """Bytes of activations: those that all layers keep for one microbatch, those on their way
        to the host, and those that multi-token prediction modules keep."""

        def make(columns: Columns) -> np.ndarray:
            cfg, shape = self.request.cfg, self._shape(columns, structure)
            some = kept_bytes(cfg, shape), in_transit_bytes(cfg, shape), module_bytes(cfg, shape)
            return np.stack([np.broadcast_to(size, (len(columns),)) for size in some])

        return self._made("kept", (structure.remat,), ("tokens", *_SIZES), make)

    def in_flight(self, structure: Structure) -> OnKeys:
        """Microbatches in flight on the first stage and on the last, and on the first at the end of
        a backward pass, when the activations of one of them are gone."""

        def make(columns: Columns) -> np.ndarray:
            shape = self._shape(columns, structure)
            ranks = (0.0, shape.degree("stage") - 1.0)
            held = [rank_in_flight(shape, rank) for rank in ranks]
            held.append(np.maximum(held[0] - 1.0, 0.0))
            return np.stack([np.broadcast_to(size, (len(columns),)) for size in held])

        choices = (structure.pipeline_schedule, structure.virtual_stages)
        return self._made("in flight", choices, ("=stage", "microbatches"), make)

    def gathered(self, structure: Structure) -> OnKeys:
        """Bytes of gathered layers in the backward pass and at the loss, of gathered ends, and of
        their gradients."""

        def make(columns: Columns) -> np.ndarray:
            cfg, shape = self.request.cfg, self._shape(columns, structure)
            layers = gathered_bytes(cfg, self.rows, shape, shape.stage_share)
            stays = 0.0 if structure.reshard_after_forward else layers
            some = layers, stays, *gathered_ends(self.rows, shape)
            return np.stack([np.broadcast_to(size, (len(columns),)) for size in some])

        choices = (structure.storage_axes, structure.reshard_after_forward, structure.zero > 0)
        return self._made("gathered", choices, ("=stage", "copies", *_SIZES, "=fsdp"), make)

    def working(self, structure: Structure) -> OnKeys:
        """Bytes that a layer's backward pass needs, of the logits, and of their gradients."""

        def make(columns: Columns) -> np.ndarray:
            cfg, shape = self.request.cfg, self._shape(columns, structure)
            some = layer_bytes(cfg, shape), *logit_bytes(cfg, shape)
            return np.stack([np.broadcast_to(size, (len(columns),)) for size in some])

        choices = (structure.remat, structure.context_method)
        return self._made("working", choices, ("tokens", *_SIZES), make)

    def _made(
        self, name: str, choices: tuple, keys: tuple[str, ...], make: Callable[[Columns], Any]
    ) -> OnKeys:
        at = (name, *choices)
        if at not in self._parts:
            found = self._distinct(keys)
            self._parts[at] = OnKeys(found, make(self.columns.take(found.first)))
        return self._parts[at]

    def _distinct(self, names: tuple[str, ...]) -> Keys:
        """Distinct rows of mesh axes (degree and links, or after "=" the degree alone) and of
        further columns."""
        if names not in self._keys:
            columns: list[np.ndarray] = []
            for name in names:
                columns += self._columns_of(name)
            self._keys[names] = keys_of(columns)
        return self._keys[names]

    def _columns_of(self, name: str) -> list[np.ndarray]:
        c = self.columns
        if name.startswith("="):
            return [c.degrees[name[1:]]]
        if name == "copies":
            return [c.degrees["replica"] * c.degrees["data"]]
        if name in c.degrees:
            return [c.degrees[name], self.meshes.links[name][c.mesh]]
        if name == "tokens":
            return [batch_shards(c.degrees) * c.microbatches * c.degrees["context"]]
        if name == "loop":
            return [c.microbatches > 1]
        if name == "piped":
            return [c.degrees["stage"] > 1]
        return [c.microbatches]

    def _shape(self, columns: Columns, structure: Structure) -> TrainShape:
        return column_shape(self.request, columns, structure)

    def _figures(
        self,
        columns: Columns,
        bodies: Sequence[Sequence[Op]],
        layers: Sequence[float] | None = None,
        known: Sequence[dict[Known, OpTime]] | None = None,
    ) -> Figures:
        times = known or [None] * len(bodies)
        timed = [self._priced(columns, ops, t) for ops, t in zip(bodies, times, strict=True)]
        return figures_of(timed, layers or self.layers, len(columns))

    def _known(self, group: int, structure: Structure) -> dict[Known, OpTime]:
        """Times of a group's ops that some remat policy has shown: a policy says which ops run
        again, and changes none but the copies to the host."""
        own = structure.remat if "offload" in structure.remat_kinds.values() else ""
        return self._times.setdefault((group, structure.context_method, own), {})

    def _priced(
        self,
        columns: Columns,
        ops: Iterable[Op],
        known: dict[Known, OpTime] | None = None,
    ) -> tuple[OpTime, ...]:
        """Ops of columns, as `price` prices those of a plan. With `known`, an op that runs again
        takes as long as it did the first time."""
        chip, placement = self.request.piece.chip, self._placement(columns)
        if known is None:
            return price_ops(ops, chip, placement, self.stack)
        ops = tuple(ops)
        once = [replace(op, id=op.id.removeprefix("re.")) for op in ops]
        timed = price_ops(once, chip, placement, self.stack, known)
        return tuple(replace(t, op=op) for t, op in zip(timed, ops, strict=True))

    def _placement(self, columns: Columns) -> Placement:
        """Where the columns lie; kept, as several parts have the same keys."""
        at = columns.mesh.tobytes()
        if at not in self._placements:
            self._placements[at] = self.meshes.take(columns.mesh).placement
        return self._placements[at]


_SIZES = ("=expert", "=context", "=tensor")
"""Inner axes by degree alone: bytes do not depend on links."""


class Chunk:
    """Candidates that use the same axes, few enough to stay in cache: `composition.Steps`."""

    def __init__(self, parts: StepParts, index: np.ndarray) -> None:
        self.parts, self.index = parts, index
        self.columns = parts.columns.take(index)
        stages, layers = self.columns.degrees["stage"], parts.request.cfg.layers
        self.stages, self.piped = stages, bool(stages[0] > 1)
        self.microbatches = self.columns.microbatches.astype(float)
        self.share = np.ceil(layers / stages) / layers
        self._gathered: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.index)

    @property
    def cfg(self) -> ModelConfig:
        return self.parts.request.cfg

    @property
    def stack(self) -> Stack:
        return self.parts.stack

    @property
    def groups(self) -> Sequence[Sequence[Parameter]]:
        return self.parts.groups

    @property
    def layers(self) -> Sequence[float]:
        return self.parts.layers

    @property
    def pairs(self) -> bool:
        return any(
            schedule_row(kind).pairs_passes
            for kind in self.parts.request.searched["pipeline_schedule"]
        )

    def at(self, part: OnKeys) -> Any:
        """A part's figures of these candidates."""
        if id(part) not in self._gathered:
            self._gathered[id(part)] = part.at(self.index)
        return self._gathered[id(part)]

    def shape(self, structure: Structure) -> TrainShape:
        """The candidates as one shape of arrays."""
        return column_shape(self.parts.request, self.columns, structure)

    def layer_parts(self, structure: Structure) -> LayerParts[Figures]:
        """A layer of every group, one per row."""
        forward, backward = self.at(self.parts.layer(structure))
        gathers, scatters, summed, casts = self.at(self.parts.exchanges(structure))
        return LayerParts(
            forward=forward,
            backward=backward,
            gathers=gathers,
            scatters=scatters,
            accumulation=summed,
            casts=casts,
        )

    def end_parts(
        self, structure: Structure
    ) -> tuple[EndParts[Figures], EndParts[Figures], Quantity, Quantity]:
        """Both ends, and the part of the last one's time, and of both ones', that is forward."""
        first, last, last_forward, both_forward = self.at(self.parts.ends(structure))
        one, other = (
            EndParts(
                chain=chain,
                gathers=gathers,
                regathers=gathers,
                scatters=scatters,
                accumulation=summed,
                casts=casts,
            )
            for chain, (gathers, scatters, summed, casts) in zip(
                (first, last), self.at(self.parts.end_exchanges(structure)), strict=True
            )
        )
        return one, other, last_forward, both_forward

    def reduction(self, structure: Structure) -> Figures:
        """The gradient reduction of a layer of every group."""
        return self.at(self.parts.reduction(structure))

    def end_reductions(self, structure: Structure) -> tuple[Figures, Figures]:
        """Those of the ends."""
        return self.at(self.parts.end_reduction(structure))

    def transfer(self, structure: Structure) -> Figures:
        """The share per layer of sending activations on, with one chunk per stage."""
        return self.at(self.parts.transfer(structure))

    def update(self, structure: Structure) -> Figures:
        """The optimizer's update."""
        return self.at(self.parts.optimizer(structure))
