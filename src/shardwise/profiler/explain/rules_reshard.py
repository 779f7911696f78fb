"""Faults of layouts that no one collective turns into each other: what is gathered whole, and cut.

XLA's partitioner looks for one collective from the layout that an array has to the one that is
asked for. Where there is none it gathers the array on every device, each of which cuts its piece
out ("involuntary full rematerialization"); `sharding.reshard` knows the cheapest steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import prod

from shardwise.errors import BadRequest
from shardwise.profiler.explain.evidence import HANDS_ON, LETTERS, Evidence
from shardwise.profiler.explain.finding import Finding, Rule
from shardwise.profiler.explain.flow import inside
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import Array
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.sharding import Dim, Layout, Mesh, ShardStep, reshard
from shardwise.sharding.count import collective_op, step_exchange
from shardwise.sharding.program_text import spec_text
from shardwise.units import format_bytes, format_seconds

MOVES = (*HANDS_ON, "copy-done", "reshape", "transpose", "all-gather-done", "convert")
"""Opcodes that lay what was gathered out anew."""
MOST_AXES = 5
COPIES, COPY_RATE = 2, 0.5
"""Copies of its piece that a device makes for each exchange, as what it sends must lie together,
and the share of the memory's bandwidth that they reach (libtpu's of 67 MB on v5e: 312 us)."""


@dataclass(frozen=True, slots=True)
class CutAnew:
    """An array gathered whole, of which each device then takes a piece: the last gather, those
    before it and the ops that only moved the array, its dims, those of the piece before and after,
    and the bytes of an element."""

    row: OpRow
    moving: tuple[OpRow, ...]
    whole: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    width: float


def gathered_to_cut(e: Evidence) -> Iterator[Finding]:
    """Arrays gathered on every device only to be cut another way."""
    for found in cuts_anew(e):
        rows = (found.row, *found.moving)
        over = {a for r in rows if (wire := r.op.op.collective) for a in wire.axes}
        yield _finding(e, found, [a for a in e.mesh if a in over])


def cuts_anew(e: Evidence) -> Iterator[CutAnew]:
    """All gathers of which nothing but a piece is used."""
    return (cut for row in e.collectives("all_gather") if (cut := _cut_anew(e, row)) is not None)


def _cut_anew(e: Evidence, row: OpRow) -> CutAnew | None:
    """What a gather is for, where all that comes of it is a piece of another cut."""
    computation, gather = e.located(row.op)
    if gather is None or not gather.operands or e.of_cache(computation.name, gather.name):
        return None
    if gather.op_name.endswith("/all_gather"):
        return None  # the program asked for it
    moved, ends = _moved(computation, gather)
    cuts = [_cut(e, computation, end, moved) for end in ends]
    first = cuts[0] if cuts else None
    if first is None or None in cuts:
        return None
    whole, after = first
    earlier = list(_gathered_before(e, computation, gather))
    start = next((r.op.name for r in reversed(earlier) if r.op.op.collective), gather.name)
    before = computation.array_of(computation.names[start].operands[0])
    if len(before.dims) != len(whole) or before.dims == after or 2 * prod(after) > prod(whole):
        return None
    moving = e.rows_of(computation, moved[1:])
    width = before.bytes / max(prod(before.dims), 1)
    return CutAnew(row, (*moving, *earlier), whole, before.dims, after, width)


def _gathered_before(e: Evidence, computation: Computation, gather: Instruction) -> Iterator[OpRow]:
    """The gathers over other axes of what a gather reads, and the ops that moved it in between, the
    last first: GPUs gather over one axis after the other."""
    found, waiting = gather, list[OpRow]()
    while found.operands and len(computation.readers(found.operands[0])) == 1:
        given = computation.names[found.operands[0]]
        row = e.named.get((computation.name, given.name))
        if row is not None and row.op.op.collective is not None:
            if row.op.op.collective.kind != "all_gather":
                return
            yield from (*waiting, row)
            waiting = []
        else:
            moves = given.opcode in MOVES or (row is not None and row.op.op.op_class == "copy")
            if not moves or not _same_dims(computation, given):
                return
            waiting += [row] if row is not None else []
        found = given


def _same_dims(computation: Computation, found: Instruction) -> bool:
    """Whether what moves an array leaves its dims as they are."""
    shapes = [computation.shape_of(n) for n in (found.operands[0], found.name)]
    if not all(isinstance(shape, Array) for shape in shapes):
        return found.opcode.endswith("-done")
    old, new = (shape.dims for shape in shapes if isinstance(shape, Array))
    return old == new


def _moved(
    computation: Computation, gather: Instruction
) -> tuple[list[str], list[tuple[Instruction, str]]]:
    """A value and all of it laid out anew, and what reads any of these, with which it reads."""
    size, moved, ends = elements(gather), [gather.name], []
    for name in moved:
        for reader in computation.readers(name):
            if reader.opcode in MOVES and elements(reader) == size:
                moved.append(reader.name)
            else:
                ends.append((reader, name))
    return moved, ends


def _cut(
    e: Evidence, computation: Computation, end: tuple[Instruction, str], moved: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The dims of the array and of the piece that a reader takes of it; None if it takes more."""
    reader, name = end
    if reader.opcode == "dynamic-slice":
        whole, piece = computation.array_of(name), computation.array_of(reader.name)
        return whole.dims, piece.dims
    if reader.opcode != "fusion":
        return None
    inside = e.module.computation(reader.called[0])
    at = reader.operands.index(name)
    (parameter,) = (p for p in inside.parameters if int(p.literal) == at)
    _, ends = _moved(inside, parameter)
    cuts = [_cut(e, inside, found, moved) for found in ends]
    return cuts[0] if cuts and None not in cuts else None


def _finding(e: Evidence, found: CutAnew, axes: Sequence[str]) -> Finding:
    rows = (found.row, *found.moving)
    taken = sum(map(spent, rows))
    size = prod(found.whole) * found.width
    cut = tuple(f"[{', '.join(map(str, dims))}]" for dims in (found.before, found.after))
    what = (
        f"{format_bytes(size)} are gathered over {' and '.join(axes)} on every device, which "
        f"then keeps a shard: no one collective turns shards of {cut[0]} into those of {cut[1]}"
    )
    uneven = [n for n, piece in zip(found.whole, found.after, strict=True) if n % piece]
    way = None if uneven else _way(e, found, axes)
    if way is None:
        remedy = (
            "put a constraint between the two, so that each step moves one axis from one dim "
            "to another, or make the array in the layout of its reader"
        )
        seconds = taken
    else:
        steps, cost = way
        remedy = _told(steps, cost)
        seconds = max(taken - cost, 0.0)
    return Finding(
        rule="full rematerialization",
        seconds=seconds,
        where=e.where(found.row.op),
        what=what,
        remedy=remedy,
    )


def _way(
    e: Evidence, found: CutAnew, axes: Sequence[str]
) -> tuple[tuple[ShardStep, ...], float] | None:
    """The cheapest steps from the one cut to the other, and their seconds per step of training."""
    layouts = [_layout(e.mesh, found.whole, piece, axes) for piece in (found.before, found.after)]
    if None in layouts or len(axes) > MOST_AXES:
        return None
    start, goal = (layout for layout in layouts if layout is not None)
    sizes = dict(zip(start.letters, found.whole, strict=True))
    try:
        dtype = "f32"  # the bytes of an element are the same in all ways
        steps = reshard(start, goal, mesh=e.mesh, sizes=sizes, dtype=dtype, cost=e.cost)
    except BadRequest:
        return None
    if not steps or any(step.kind == "all_gather" for step in steps):
        return None
    size, rate = prod(found.before) * found.width, _copy_rate(e, found)
    moved = sum(_seconds(e, step, size, rate) for step in steps)
    return steps, moved * found.row.count


def _copy_rate(e: Evidence, found: CutAnew) -> float:
    """Bytes per second of the program's own copies of the array, where it has any."""
    rows = [r for r in found.moving if r.op.op.op_class == "copy"]
    taken = sum(map(spent, rows))
    return sum(r.hbm_bytes for r in rows) / taken if taken else COPY_RATE * e.bandwidth


def _seconds(e: Evidence, step: ShardStep, size: float, rate: float) -> float:
    """Of one step that moves pieces of this many bytes."""
    group = size * (e.degree(step.axes) if step.kind == "all_to_all" else 1)
    if step.kind == "slice":
        return 0.0
    exchange = step_exchange(step, step.axes) if step.kind == "permute" else None
    wire = e.cost(collective_op(step.kind, step.axes, group, exchange=exchange))
    return wire + COPIES * 2 * size / rate


def _layout(
    mesh: Mesh, whole: tuple[int, ...], piece: tuple[int, ...], axes: Sequence[str]
) -> Layout | None:
    """The layout whose pieces have these dims, cut by these axes in the order of the mesh."""
    ways = [n // p for n, p in zip(whole, piece, strict=True)]
    for order in permutations(axes):
        left, dims = list(order), []
        for letter, n in zip(LETTERS, ways, strict=False):
            cut: list[str] = []
            while left and prod(mesh[a] for a in cut) < n:
                cut.append(left.pop(0))
            dims.append(Dim(letter, tuple(cut)))
        if all(prod(mesh[a] for a in d.axes) == n for d, n in zip(dims, ways, strict=True)):
            return Layout(name="A", dims=tuple(dims))
    return None


def _told(steps: Sequence[ShardStep], cost: float) -> str:
    between = [str(step.output) for step in steps[:-1]]
    way = " -> ".join((str(steps[0].inputs[0]), *between, str(steps[-1].output)))
    code = [
        f"x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, {spec_text(step.output)}))"
        for step in steps
    ]
    return "\n".join((f"go in {len(steps)} steps, {format_seconds(cost)}: {way}:", *code))


def uneven_cuts(e: Evidence) -> Iterator[Finding]:
    """Dims that the axes of a constraint do not divide: padded by the compiler, and what comes of
    them is shifted, selected and gathered before it leaves the step."""
    for row in e.timeline.rows:
        computation, found = e.located(row.op)
        padded = found and _padded(e, computation, found)
        if found is None or not padded:
            continue
        size, filled, axes = padded
        rows = [row, *_made_after(e, computation, found)]
        n, over = e.degree(axes), " and ".join(axes)
        yield Finding(
            rule="uneven constraint",
            seconds=sum(map(spent, rows)),
            where=e.where(row.op),
            what=(
                f"a dim of {size:,} is sharded over {over}, and {n} devices do not divide it: it "
                f"is padded to {filled:,}, its results are shifted between devices, and leave the "
                "step replicated"
            ),
            remedy=(
                f"make the dim {filled:,} where the model is defined (and mask the rest), or shard "
                f"it over axes that divide it{_dividing(e, size)}"
            ),
        )


def _padded(
    e: Evidence, computation: Computation, found: Instruction
) -> tuple[int, int, tuple[str, ...]] | None:
    """A dim, the size that the compiler gives it, and the axes that this divides among."""
    for c, i in inside(e.module, computation, found):
        asked = i.op_name.endswith(("/pad", "/concatenate")) or "shard_map/" in i.op_name
        if i.opcode != "pad" or asked:
            continue  # what the program pads itself is its own affair
        old, new = (c.array_of(name).dims for name in (i.operands[0], i.name))
        for size, filled in zip(old, new, strict=True):
            for axes in _groups(e.mesh):
                n = e.degree(axes)
                if n < size < filled < size + n and filled % n == 0:
                    return size, filled, axes
    return None


def _groups(mesh: Mesh) -> list[tuple[str, ...]]:
    """Some or all axes of more than one device, the fewest devices first."""
    axes = [a for a in mesh if mesh[a] > 1][:MOST_AXES]
    found = [g for n in range(1, len(axes) + 1) for g in combinations(axes, n)]
    return sorted(found, key=lambda group: prod(mesh[a] for a in group))


def _made_after(e: Evidence, computation: Computation, found: Instruction) -> Iterator[OpRow]:
    """Ops of the compiler's own (no line of the program has them) that follow from a value."""
    waiting, seen = [found.name], {found.name}
    while waiting:
        for reader in computation.readers(waiting.pop()):
            if reader.name in seen:
                continue
            seen.add(reader.name)
            waiting.append(reader.name)
            row = e.named.get((computation.name, reader.name))
            if row is not None and not row.op.op_name:
                yield row


def _dividing(e: Evidence, size: int) -> str:
    found = [g for g in _groups(e.mesh) if size % e.degree(g) == 0]
    return f", {' and '.join(found[-1])} among them" if found else ""


RULES: tuple[Rule, ...] = (gathered_to_cut, uneven_cuts)
