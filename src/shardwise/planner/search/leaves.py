"""The parts of a training step on the few distinct rows of candidates that each depends on.

A layer's chain depends on the tokens of a microbatch and the inner degrees, a gather on the degrees
that store parameters, and so on: every `StepPart` says it. `StepParts` counts and prices each part,
or counts its bytes, once per distinct row and choice; a `Chunk` of candidates gathers the figures,
and `price/composition.py` and `price/memory.py` put its candidates together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from shardwise.hardware.placement import Placement
from shardwise.planner.price.figures import Figures, FiguresAt, Pieces, Steps, figures_of, gathered
from shardwise.planner.price.memory import (
    Kept,
    Resident,
    busiest_stages,
    fuller_update,
    in_transit_bytes,
    kept_bytes,
    memory,
    module_bytes,
    resident,
)
from shardwise.planner.price.plan import choices_on, memory_facts, stack_for
from shardwise.planner.price.working import (
    Working,
    exchange_bytes,
    gathered_bytes,
    gathered_ends,
    layer_bytes,
    logit_bytes,
    stays_gathered,
    working_of,
)
from shardwise.planner.search.columns import Columns, Keys, Meshes, keys_of
from shardwise.planner.search.legality import batch_shards
from shardwise.planner.search.request import TrainRequest
from shardwise.planner.step.parts import LAYER, Bodies, StepPart, Tensors, tensors_of
from shardwise.planner.step.shape import TrainShape
from shardwise.plans.train import PipelineKind, Structure
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.price import Known, price_ops
from shardwise.scheduling.pipeline import schedule_row
from shardwise.work import Quantity, present, total


def share_of(request: TrainRequest, columns: Columns) -> np.ndarray:
    """The share of the layers that the busiest stage holds."""
    layers = request.cfg.layers
    return np.ceil(layers / columns.degrees["stage"]) / layers


def column_shape(request: TrainRequest, columns: Columns, structure: Structure) -> TrainShape:
    """The columns under one structural choice, as one TrainShape of arrays."""
    d = {axis: degree.astype(float) for axis, degree in columns.degrees.items()}
    microbatches = columns.microbatches.astype(float)
    return TrainShape(
        **memory_facts(structure, request.piece.chip),
        degrees={axis: v for axis, v in d.items() if present(v > 1)},
        sequences=request.sequences / (batch_shards(d) * microbatches),
        sequence_length=request.sequence_length,
        microbatches=microbatches,
        stage_share=share_of(request, columns),
        **choices_on(structure, request.piece.chip),
    )


# Bytes --------------------------------------------------------------------------------------------


def _resident(tensors: Tensors, shape: TrainShape) -> tuple[Quantity, ...]:
    """The fields of `Resident`, the state of all kinds together, on both end stages."""
    both = (resident(tensors, shape, stage) for stage in busiest_stages(shape))
    return tuple(x for r in both for x in (total(r.state.values()), r.update, r.early, r.late))


def _kept(tensors: Tensors, shape: TrainShape) -> tuple[Quantity, ...]:
    """The fields of `Kept`, of all layers of the model."""
    cfg = tensors.cfg
    return kept_bytes(cfg, shape), module_bytes(cfg, shape), in_transit_bytes(cfg, shape)


def _gathered(tensors: Tensors, shape: TrainShape) -> tuple[Quantity, ...]:
    return gathered_bytes(tensors, shape, shape.stage_share), *gathered_ends(tensors, shape)


def _working(tensors: Tensors, shape: TrainShape) -> tuple[Quantity, ...]:
    cfg = tensors.cfg
    return layer_bytes(cfg, shape), exchange_bytes(cfg, shape), *logit_bytes(cfg, shape)


def _in_flight(tensors: Tensors, shape: TrainShape) -> tuple[Quantity, ...]:
    return shape.in_flight(0.0), shape.in_flight(shape.degree("stage") - 1.0)


_SIZES = ("=expert", "=context", "=tensor")
"""Inner axes by degree alone: bytes do not depend on links."""

RESIDENT = StepPart(
    name="resident bytes",
    count=_resident,
    choices=lambda s: (s.storage_axes, s.gradient_reduce, s.zero, s.ends),
    keys=("=stage", "copies", *_SIZES, "=fsdp", "loop"),
)
KEPT = StepPart(
    name="kept bytes",
    count=_kept,
    choices=lambda s: (s.remat,),
    keys=("tokens", *_SIZES),
)
GATHERED = StepPart(
    name="gathered bytes",
    count=_gathered,
    choices=lambda s: (s.storage_axes, s.weight_gather, s.zero > 0),
    keys=("=stage", "copies", *_SIZES, "=fsdp"),
)
WORKING = StepPart(
    name="working bytes",
    count=_working,
    choices=lambda s: (s.remat, s.context_method),
    keys=("tokens", *_SIZES),
)
IN_FLIGHT = StepPart(
    name="microbatches in flight",
    count=_in_flight,
    choices=lambda s: (s.pipeline_schedule, s.virtual_stages),
    keys=("=stage", "microbatches"),
)

_HAIR = 1 - 1e-9
"""Of a bound whose sums are made in another order than those of what it bounds."""

# Parts on keys ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OnKeys:
    """Values of one part of a step, for each distinct row (key) of what they depend on."""

    keys: Keys
    values: tuple[Any, ...]


def values_of(tables: Sequence[OnKeys], index: np.ndarray, which: np.ndarray) -> tuple[Any, ...]:
    """The values of the candidates at an index, each of the table that `which` says. All tables are
    on the same keys."""
    keys, n = tables[0].keys.inverse[index], len(index)
    pieces: Pieces = [(slice(None), keys)]
    if len(tables) > 1:
        pieces = [(places, keys[places]) for places in _places(which, len(tables))]
    return tuple(
        FiguresAt(values, pieces, n)
        if isinstance(values[0], Figures)
        else gathered(values, pieces, n)
        for values in zip(*(table.values for table in tables), strict=True)
    )


def _places(which: np.ndarray, many: int) -> Iterator[slice | np.ndarray]:
    """Of each number where it stands; a slice where that is one run."""
    for number in range(many):
        at = np.flatnonzero(which == number)
        run = len(at) and at[-1] - at[0] < len(at)
        yield slice(at[0], at[-1] + 1) if run else at


class StepParts:
    """The parts of a step of all candidates laid out in one way on one part of the slice, each made
    once per choice that it depends on."""

    def __init__(
        self,
        request: TrainRequest,
        meshes: Meshes,
        columns: Columns,
        any_structure: Structure,
        box: tuple[int, ...],
    ) -> None:
        self.request, self.meshes, self.columns, self.box = request, meshes, columns, box
        shape = column_shape(request, columns, any_structure)
        self.tensors, self.eager = tensors_of(request.cfg, shape), shape.eager
        self.stack = stack_for(shape, request.piece.chip)
        self._keys: dict[tuple[str, ...], Keys] = {}
        self._parts: dict[tuple, OnKeys] = {}
        self._bounds: dict[tuple, np.ndarray] = {}
        self._shapes: dict[tuple[str, ...], tuple[Columns, TrainShape]] = {}
        self._times: dict[tuple[int, str, str], dict[Known, OpTime]] = {}
        self._placements: dict[bytes, Placement] = {}

    def seconds(self, part: StepPart, structure: Structure) -> OnKeys:
        """The figures of a part. Where schedules pair passes, those with pairs and without are made
        at once: the ops are the same, and other ones run beside the chain."""
        at = part.name, *part.choices(structure)
        if at not in self._parts:
            pairs = part.pairs and self.pairs
            made = [structure.with_pairing(k) for k in (False, True)] if pairs else [structure]
            columns, counted = self._counted(part, made[-1])
            priced = [self._times_of(part, columns, bodies, structure) for bodies in counted]
            keys, layers = self._distinct(part.keys), part.layers(self.request.cfg)
            found: tuple[Figures | None, ...] = (None,) * len(priced)
            for one in made:
                each = zip(priced, found, strict=True)
                found = tuple(figures_of(t, layers, len(keys), one.hidden, f) for t, f in each)
                self._parts[part.name, *part.choices(one)] = OnKeys(keys, found)
        return self._parts[at]

    def _times_of(
        self, part: StepPart, columns: Columns, bodies: Bodies, structure: Structure
    ) -> list[tuple[OpTime, ...]]:
        """Ops of columns, body by body, as `price` prices those of a plan."""
        chip, placement = self.request.piece.chip, self._placement(columns)
        known = (self._known(part, i, structure) for i in range(len(bodies)))
        return [
            price_ops(ops, chip, placement, self.stack, mine)
            for ops, mine in zip(bodies, known, strict=True)
        ]

    def bytes(self, part: StepPart, structure: Structure) -> OnKeys:
        """The bytes of a part."""
        at = part.name, *part.choices(structure)
        if at not in self._parts:
            _, counted = self._counted(part, structure)
            self._parts[at] = OnKeys(self._distinct(part.keys), counted)
        return self._parts[at]

    def layer_floor(self, structure: Structure, index: np.ndarray, stages: bool) -> np.ndarray:
        """Seconds that no storage, ZeRO stage and schedule goes below, of the candidates at an
        index, all with stages or all without.

            rounds x sum over kinds of layers of (chain + wire),   the least over pairing

        A round is at least its chain, whatever runs beside it (`round_form`), and gathers,
        scatters and transfers only add to that. A hair is taken off for sums in another order.
        """
        kinds = (False, True) if stages and self.pairs else (False,)
        keys = self._distinct(LAYER.keys).inverse[index]
        least = [self._chains(structure.with_pairing(kind)) for kind in kinds]
        return np.minimum.reduce(least)[keys] * self.rounds[index] * _HAIR

    def _chains(self, structure: Structure) -> np.ndarray:
        """Of each distinct row of `LAYER`: the seconds of one microbatch's chains."""
        at = LAYER.choices(structure)
        if at not in self._bounds:
            many = np.array(LAYER.layers(self.request.cfg))[:, None]
            passes = self.seconds(LAYER, structure).values
            rows = total(many * (each.chain + each.wire) for each in passes)
            self._bounds[at] = np.sum(np.asarray(rows), axis=0)
        return self._bounds[at]

    @cached_property
    def rounds(self) -> np.ndarray:
        """Rounds of a layer of each candidate, as a share of the model's layers."""
        return share_of(self.request, self.columns) * self.columns.microbatches

    @cached_property
    def pairs(self) -> bool:
        """Whether some schedule pairs passes and has experts to pair them for."""
        kinds = self.request.searched["pipeline_schedule"]
        return self.request.cfg.has_experts and any(schedule_row(k).pairs_passes for k in kinds)

    def _counted(self, part: StepPart, structure: Structure) -> tuple[Columns, tuple[Any, ...]]:
        """A part counted on its distinct rows, and those as columns."""
        if part.keys not in self._shapes:
            columns = self.columns.take(self._distinct(part.keys).first)
            self._shapes[part.keys] = columns, column_shape(self.request, columns, structure)
        columns, shape = self._shapes[part.keys]
        shape = replace(shape, **choices_on(structure, self.request.piece.chip))
        return columns, part.count(self.tensors, shape)

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

    def _known(
        self, part: StepPart, group: int, structure: Structure
    ) -> dict[Known, OpTime] | None:
        """Times of a kind of layer's ops that some remat policy has shown: a policy says which ops
        run again, and changes none but the copies to the host and to what a loop keeps."""
        if part is not LAYER:
            return None
        moves = structure.stack_row.stacks_kept or "offload" in structure.remat_kinds.values()
        own = structure.remat if moves else ""
        return self._times.setdefault((group, structure.context_method, own), {})

    def _placement(self, columns: Columns) -> Placement:
        """Where the columns lie; kept, as several parts have the same keys."""
        at = columns.mesh.tobytes()
        if at not in self._placements:
            self._placements[at] = self.meshes.take(columns.mesh).placement
        return self._placements[at]


# Candidates ---------------------------------------------------------------------------------------


@lru_cache(maxsize=65_536)  # chunks ask for the same ones; a search has some thousands
def _scheduled(structure: Structure, kind: PipelineKind, chunks: int) -> Structure:
    """The structure under another schedule."""
    return replace(structure, pipeline_schedule=kind, virtual_stages=chunks)


@dataclass(frozen=True, slots=True)
class Mix:
    """Structures, and which of them each row has."""

    structures: tuple[Structure, ...]
    which: np.ndarray


class Chunk:
    """Candidates that all have stages, or all have none, few enough to stay in cache. Each is taken
    under every structure that its functions are asked for; with a `mix` each has its own structure,
    and the functions are told the schedule alone."""

    def __init__(self, parts: StepParts, index: np.ndarray, mix: Mix | None = None) -> None:
        self.parts, self.index, self.mix = parts, index, mix
        self.columns = parts.columns.take(index)
        self._gathered: dict[tuple, tuple[Any, ...]] = {}
        self._memory: dict[tuple, Any] = {}
        self._mixed: dict[tuple[PipelineKind, int], tuple[Structure, ...]] = {}
        self._shape: TrainShape | None = None

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def _share(self) -> np.ndarray:
        return share_of(self.parts.request, self.columns)

    def steps(self) -> Steps:
        """The candidates as steps to be priced: they hold the chunk, which holds them not, so that
        large arrays go as soon as nobody asks for them."""
        request, stages = self.parts.request, self.columns.degrees["stage"]
        return Steps(
            tensors=self.parts.tensors,
            stack=self.parts.stack,
            stages=stages,
            microbatches=self.columns.microbatches.astype(float),
            share=self._share,
            n=len(self),
            pairs=self.parts.pairs,
            expert_group=self.shape(request.structure).layer_shape.expert_group,
            of=self._of,
            figures=lambda part, structure: self._at(self.parts.seconds, part, structure),
        )

    def _under(self, structure: Structure) -> tuple[Structure, ...]:
        """The structures of the rows, with the schedule of one."""
        if self.mix is None:
            return (structure,)
        schedule = structure.pipeline_schedule, structure.virtual_stages
        if schedule not in self._mixed:
            self._mixed[schedule] = tuple(_scheduled(s, *schedule) for s in self.mix.structures)
        return self._mixed[schedule]

    def _of(
        self,
        structure: Structure,
        figure: Callable[[TrainShape], Quantity],
        choices: Callable[[Structure], Any],
    ) -> Quantity:
        """A number of the rows under their structures, that depends on some choices."""
        made = self._under(structure)
        values = {choices(s): s for s in made}
        values = {key: figure(self.shape(s)) for key, s in values.items()}
        if len(values) == 1:
            return next(iter(values.values()))
        assert self.mix is not None
        each = [np.broadcast_to(v, (len(self),)) for v in values.values()]
        number = {key: i for i, key in enumerate(values)}
        return np.choose(np.array([number[choices(s)] for s in made])[self.mix.which], each)

    def shape(self, structure: Structure) -> TrainShape:
        """The candidates as one shape of arrays."""
        if self._shape is None:
            self._shape = column_shape(self.parts.request, self.columns, structure)
        return self._shape.under(structure)

    def _at(
        self, of: Callable[[StepPart, Structure], OnKeys], part: StepPart, structure: Structure
    ) -> tuple[Any, ...]:
        """A part's values of these candidates."""
        made = self._under(structure)
        choices = tuple(map(part.choices, made))
        at = part.name, choices
        if at not in self._gathered:
            distinct = dict(zip(choices, made, strict=True))
            tables, which = [of(part, s) for s in distinct.values()], np.zeros(1, np.int64)
            if self.mix is not None and len(distinct) > 1:
                number = {choice: i for i, choice in enumerate(distinct)}
                which = np.array([number[choice] for choice in choices])[self.mix.which]
            self._gathered[at] = values_of(tables, self.index, which)
        return self._gathered[at]

    def memory(self, structure: Structure, room: float | None = None) -> np.ndarray:
        """Bytes per device at the fullest point of the step, where not for its own `room`."""
        (first, last, update), kept, working = self._held(structure)
        working = working if room is None else replace(working, room=room)
        held, held_last = self._at(self.parts.bytes, IN_FLIGHT, structure)
        return np.asarray(memory(first, last, kept, working, (held, held_last), update).peak())

    def _held(self, structure: Structure) -> tuple[Any, Kept, Working]:
        """All that `memory` needs but the microbatches in flight, which a schedule decides."""
        ways = (RESIDENT, self._resident), (KEPT, self._kept), (GATHERED, WORKING, self._working)
        s = structure
        stored = (s.storage_axes, s.weight_gather, s.gradient_reduce, s.zero)
        whole = (s.remat, s.context_method, *stored, s.ends)
        if whole not in self._memory:
            self._memory[whole] = tuple(self._once(structure, *about) for about in ways)
        return self._memory[whole]

    def _once(self, structure: Structure, *about: Any) -> Any:
        """What a function makes of a structure, once per choice of the parts before it."""
        *parts, make = about
        at = tuple((part.name, part.choices(structure)) for part in parts)
        if at not in self._memory:
            self._memory[at] = make(structure)
        return self._memory[at]

    def _resident(self, structure: Structure) -> tuple[Resident, Resident, dict[str, Quantity]]:
        sizes = self._at(self.parts.bytes, RESIDENT, structure)
        first, last = (Resident({"state": s[0]}, *s[1:]) for s in (sizes[:4], sizes[4:]))
        return first, last, {"all": total(fuller_update(first, last).values())}

    def _kept(self, structure: Structure) -> Kept:
        layers, modules, in_transit = self._at(self.parts.bytes, KEPT, structure)
        return Kept(layers * self._share, modules, in_transit)

    def _working(self, structure: Structure) -> Working:
        gathered, *ends = self._at(self.parts.bytes, GATHERED, structure)
        layer, fixed, *logits = self._at(self.parts.bytes, WORKING, structure)
        stays = self._of(structure, stays_gathered, lambda s: s.weight_gather)
        return working_of(gathered, layer, fixed, ends, logits, self.shape(structure), stays)
