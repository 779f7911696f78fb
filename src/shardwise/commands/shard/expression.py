"""Shard an expression: read it, resolve it and price it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf, prod

from shardwise.commands.base.inputs import Hardware
from shardwise.errors import BadRequest, Remark, check_known
from shardwise.hardware import Placement, Slice, Spelling, place_or_refuse
from shardwise.roofline import Ranking, rank, seconds
from shardwise.sharding import (
    Einsum,
    Layout,
    Mesh,
    Resolution,
    Strategy,
    distinct,
    padded_sizes,
    parse_sizes,
    resolve,
)
from shardwise.sharding.chain import told_apart
from shardwise.sharding.count import step_exchange
from shardwise.sharding.reshard import Cost
from shardwise.sharding.simulate import CollectiveTrace, fabric_of, simulate, targets_of
from shardwise.units import format_bytes, sig

_PRICED = 32
"""So many strategies of the lowest cost are looked at; on a slice, with what overlaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The answer: the einsum with sizes that divide, the strategies and, on hardware, their rank.

    `limit` is the bytes a device may hold.
    """

    einsum: Einsum
    mesh: Mesh
    sizes: Mapping[str, int]
    dtype: str
    limit: float
    notes: tuple[str, ...]
    resolution: Resolution
    piece: Slice | None = None
    placement: Placement | None = None
    ranking: Ranking | None = None

    @property
    def best(self) -> Strategy:
        """The quickest strategy on the slice; without one that which sends the fewest bytes."""
        if self.ranking is not None:
            return self.ranking.best.strategy
        return self.resolution.best

    @property
    def reasons(self) -> tuple[str, ...]:
        """What the answer rests on, and what the next best costs."""
        if self.ranking is not None:
            return self.ranking.reasons
        return _byte_reasons(self.resolution)


def shard_expression(
    text: str,
    *,
    dims: str,
    mesh: str,
    on: str = "",
    dtype: str = "bf16",
    out: str = "",
    free_inputs: Collection[str] = (),
    max_hbm: float = inf,
    top: int = 5,
    hardware: Hardware | None = None,
) -> Sharding:
    """The cheapest ways to compute an einsum, a chain or a reshard in the notation.

    `dims` are "I=8192,J=16Ki" and `mesh` is "X=4,Y=4", as on the command line. `on` is a slice;
    without it strategies are ranked by the bytes a device sends. `out` is "free" or a layout in
    place of the written result. `free_inputs` are operands with a free stored layout.
    `max_hbm` is bytes per device (on a slice at most what the chip can use). Dims that do not
    divide are padded, with a note. Raises BadRequest, or NoFeasiblePlan if nothing fits.
    """
    einsum, axes, given = Einsum.parse(text), Mesh.parse(mesh), parse_sizes(dims)
    if out:
        einsum = einsum.freed() if out == "free" else einsum.to(Layout.parse(out))
    for letter in given:
        check_known("dim", letter, einsum.letters, f"the expression is '{einsum}'")
    if top < 1:
        raise BadRequest(f"--top {top} shows nothing; give 1 or more")
    padded = padded_sizes(einsum, given, axes)
    search = _ShardSearch(
        einsum=einsum,
        mesh=axes,
        sizes=padded.sizes,
        dtype=dtype,
        free_inputs=free_inputs,
        top=top,
        notes=padded.notes,
    )
    if not on:
        return search.by_bytes(max_hbm)
    return search.on((hardware or Hardware()).slice(on), max_hbm)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardSearch:
    """What is to be computed, the `top` ways that are wanted, and what is said of its sizes."""

    einsum: Einsum
    mesh: Mesh
    sizes: Mapping[str, int]
    dtype: str
    free_inputs: Collection[str]
    top: int
    notes: tuple[str, ...]

    def resolved(self, max_bytes: float, cost: Cost | None = None) -> Resolution:
        """The cheapest ways of at most so many bytes of a device."""
        return resolve(
            self.einsum,
            self.mesh,
            self.sizes,
            dtype=self.dtype,
            cost=cost,
            free_inputs=self.free_inputs,
            max_bytes=max_bytes,
            top=max(_PRICED, self.top),
        )

    def by_bytes(self, limit: float) -> Sharding:
        """The ways by the bytes that a device sends."""
        found = self.resolved(limit)
        shown = told_apart(distinct(found.strategies))[: self.top]
        return Sharding(
            einsum=self.einsum,
            mesh=self.mesh,
            sizes=self.sizes,
            dtype=self.dtype,
            limit=limit,
            notes=(*self.notes, *found.notes),
            resolution=replace(found, strategies=shown),
        )

    def on(self, spelling: Spelling, max_hbm: float) -> Sharding:
        """The ways by their time on a slice."""
        piece = spelling.slice
        chip, placement = piece.chip, placed(piece, self.mesh)
        usable = chip.usable_bytes_per_device
        limit, cost = min(max_hbm, usable), seconds(chip, placement)
        # Keeping every trade of time for memory is slow and seldom needed.
        found = self.resolved(inf, cost)
        if any(strategy.peak_bytes > limit for strategy in found.strategies):
            found = self.resolved(limit, cost)
        return Sharding(
            einsum=self.einsum,
            mesh=self.mesh,
            sizes=self.sizes,
            dtype=self.dtype,
            limit=limit,
            notes=(*spelling.notes, *_idle(placement), *self.notes, *found.notes),
            resolution=found,
            piece=piece,
            placement=placement,
            ranking=rank(found, chip, placement, top=self.top),
        )


def _idle(placement: Placement) -> list[str]:
    """A note where the mesh leaves chips of the slice out."""
    idle = int(placement.chips_idle)
    used = int(placement.chips_used)
    said = Remark(f"the mesh uses {used:,} chips of {placement.slice}, {idle:,} idle")
    return [said] if idle else []


def placed(piece: Slice, mesh: Mesh) -> Placement:
    """The mesh on the slice, or on a part of it; raises BadRequest where it cannot be laid."""
    placement = place_or_refuse(piece, dict(mesh))
    if not placement.legal:
        raise BadRequest(
            f"mesh {mesh} cannot be placed on '{piece}': its degrees do not split the slice's axes "
            "evenly; reorder or change them"
        )
    return placement


def first_movement(found: Sharding) -> CollectiveTrace:
    """The first collective of the best strategy, with the smallest blocks that it divides.

    Raises BadRequest where nothing moves, and where no slice says which links there are.
    """
    if found.placement is None:
        raise BadRequest("--animate shows links; name the slice with --on")
    if not found.best.collectives:
        raise BadRequest(f"--animate: the best way for '{found.einsum}' moves no data")
    step = found.best.collectives[0]
    axes = [axis for axis in found.mesh if axis in step.axes]
    fabric, targets = fabric_of(found.placement, axes), None
    if step.kind == "permute":
        targets = targets_of(step_exchange(step, axes), found.placement)
    return simulate(step.kind, fabric, targets=targets)  # type: ignore[arg-type]


def _byte_reasons(resolution: Resolution) -> tuple[str, ...]:
    said = ["ranked by the bytes that one device sends; give a slice with --on to rank by time"]
    if len(resolution.strategies) > 1:
        best, other = resolution.strategies[:2]
        more = other.wire_bytes - best.wire_bytes
        times = f", {sig(other.wire_bytes / best.wire_bytes)}x" if best.wire_bytes else ""
        cost = f"sends {format_bytes(more)} more{times}" if more > 0 else "sends as much"
        said.append(f"next best {cost}: {other.summary}{_more_flops(best, other)}")
    return tuple(said)


def _more_flops(best: Strategy, other: Strategy) -> str:
    ratio = prod([float(other.work.flops()), 1 / max(float(best.work.flops()), 1.0)])
    return f", at {sig(ratio)}x the FLOPs" if ratio > 1 else ""
