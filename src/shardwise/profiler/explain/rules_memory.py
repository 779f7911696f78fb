"""Faults of what lies where: tables and optimizer state on all devices, kept activations."""

from collections.abc import Iterator, Sequence

from shardwise.profiler.explain.evidence import Argument, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.work import Block, HloOp, Nested
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes, format_gib
from shardwise.work import grouped

LARGE = 0.25
"""The share of a tree's bytes from which a leaf of it is worth cutting."""
STATE_COPIES = 3
"""A parameter and at least two arrays like it: a moment and a master copy, or two moments."""
FULL = 0.5
"""The share of the usable memory from which kept activations are a burden."""


def whole_parameters(e: Evidence) -> Iterator[Finding]:
    """A parameter that lies whole along an axis which cuts the others of its tree."""
    for leaves in grouped(e.floats(), lambda a: a.tree).values():
        total = sum(a.bytes for a in leaves)
        for a in leaves:
            others = [b for b in leaves if b is not a]
            axes = [x for x in a.copies if _mostly_cut(e, others, x)]
            if not axes or a.bytes < LARGE * total:
                continue
            yield _whole(e, a, axes)


def _mostly_cut(e: Evidence, leaves: Sequence[Argument], axis: str) -> bool:
    """Whether an axis cuts most of the other leaves, by their whole bytes."""
    whole = {id(b): b.bytes * e.degree(sorted(b.axes)) for b in leaves}
    cut = sum(whole[id(b)] for b in leaves if axis in b.axes)
    return cut > 0.5 * sum(whole.values())


def _whole(e: Evidence, a: Argument, axes: Sequence[str]) -> Finding:
    saved = 1 - 1 / e.degree(axes)
    touched = a.bytes * saved * (2 if a.donated else 1)
    summed = [
        row
        for row in e.collectives("all_reduce")
        if row.op.op.collective and float(row.op.op.collective.bytes) >= a.bytes
    ]
    made = saved * sum(spent(row) for row in e.timeline.rows if _makes_like(e, row, a))
    seconds = max(touched / e.bandwidth, made) + saved * sum(row.per_step for row in summed)
    return Finding(
        rule="whole parameter",
        seconds=seconds,
        where=a.layout,
        what=(
            f"'{a.name}', {format_bytes(a.bytes)}, is replicated on every device of "
            f"{' and '.join(axes)}, which shard the other parameters"
        ),
        remedy=f"shard it over {' and '.join(axes)} too: its gradient is then reduce-scattered",
    )


def _makes_like(e: Evidence, row: OpRow, a: Argument) -> bool:
    """Whether an op without products makes an array of a parameter's dims: its gradient, or it
    renewed."""
    _, found = e.located(row.op)
    plain = row.op.op.stream == "compute" and not row.flops and row.op.op.collective is None
    return plain and found is not None and any(m.dims == a.dims for m in arrays(found.shape))


def replicated_optimizer(e: Evidence) -> Iterator[Finding]:
    """Optimizer state that every device of a data axis updates in full."""
    groups = grouped((a for a in e.floats() if a.donated), lambda a: (a.dims, a.copies))
    state = [a for same in groups.values() if len(same) >= STATE_COPIES for a in same]
    data = {x for b in e.arguments if not b.donated for x in b.axes}
    axes = [x for x in e.mesh if x in data and state and all(x in a.copies for a in state)]
    if not axes:
        return
    size = sum(a.bytes for a in state)
    saved = size * (1 - 1 / e.degree(axes))
    yield Finding(
        rule="replicated optimizer",
        seconds=2 * saved / e.bandwidth,
        where=", ".join(sorted({a.tree for a in state})),
        what=(
            f"{format_gib(size)} of parameters and optimizer state are the same on all "
            f"{e.degree(axes)} devices of {' and '.join(axes)}, and each updates all of it"
        ),
        remedy=(
            f"shard the state over {' and '.join(axes)} (ZeRO-1): each device updates a shard, and "
            "gradients are reduce-scattered and not all-reduced"
        ),
    )


def missing_remat(e: Evidence) -> Iterator[Finding]:
    """Activations of every layer, kept for the backward pass, that fill the memory."""
    if any(row.op.op.phase == "recompute" for row in e.timeline.rows):
        return
    trips = {str(n) for n in _trips(e.work.block) if n > 1}
    kept = [
        b
        for b in e.buffers
        if b.kind == "temporary" and "jvp" in b.op and _leading(b.shape) in trips
    ]
    size = sum(b.bytes for b in kept)
    if size < FULL * e.capacity:
        return
    first = kept[0]
    yield Finding(
        rule="missing remat",
        seconds=2 * size / e.bandwidth,
        where=first.source or first.op,
        what=(
            f"{format_gib(size)} of {format_gib(e.capacity)} hold activations of all layers until "
            f"the backward pass ({len(kept)} arrays, the largest {first.shape})"
            + ("" if e.fits else "; the program does not fit")
        ),
        remedy="wrap the layer in jax.checkpoint, so that only its inputs are kept",
    )


def _trips(block: Block) -> Iterator[int]:
    for item in block:
        if isinstance(item, Nested):
            yield item.times
            yield from _trips(item.block)


def _leading(shape: str) -> str:
    return shape.partition("[")[2].partition(",")[0]


def padded(e: Evidence) -> Iterator[Finding]:
    """Bytes that only fill tiles, where they are a quarter or more of what an op moves."""
    rows = (r for r in e.timeline.rows if r.op.padding > LARGE * float(r.op.op.hbm_bytes) > 0)
    for where, group in by_source(e, rows).items():
        fill = sum(r.op.padding * r.count for r in group)
        moved = sum(r.hbm_bytes for r in group)
        yield Finding(
            rule="padding",
            seconds=sum(_filling(e, r) for r in group),
            where=where,
            what=f"{format_bytes(fill)} of {format_bytes(moved)} moved are only padding of tiles",
            remedy=_remedy(group[0].op),
        )


def _filling(e: Evidence, row: OpRow) -> float:
    """Seconds per step that an op spends on what only fills tiles: its share of an op that is there
    to move bytes, of another the time of these bytes."""
    if row.hbm_bytes / e.bandwidth < spent(row) / 2:
        return row.op.padding * row.count / e.bandwidth
    return spent(row) * row.op.padding / float(row.op.op.hbm_bytes)


def _remedy(item: HloOp) -> str:
    return (
        f"'{item.name}' has a last dim that is not a multiple of {LANES}, or a second-last dim "
        "that does not fill a tile: fold small dims together, or pad the model's width once"
    )


LANES = 128
"""Elements of a TPU tile's last dim (book 9.2.2)."""

RULES: tuple[Rule, ...] = (whole_parameters, replicated_optimizer, missing_remat, padded)
