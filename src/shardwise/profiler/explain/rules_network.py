"""Faults of communication: weights gathered for few tokens, whole sums, axis order, the host."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from math import inf

from shardwise.errors import BadRequest
from shardwise.profiler.explain.evidence import Argument, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source, moved
from shardwise.profiler.explain.layouts import only_leaves
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow, schedule
from shardwise.roofline.stacks import whole_sums as least_devices
from shardwise.sharding.mesh import Mesh
from shardwise.units import format_bytes, format_seconds
from shardwise.work import Matmul

FEW = 0.25
"""Activations of less than this share of the gathered weight's bytes had better move themselves."""
BETTER = 0.98
MOST_AXES = 4


def gathered_weights(e: Evidence) -> Iterator[Finding]:
    """Stored weights gathered for a matmul of few tokens: moving the tokens would be less."""
    gathers = (row for row in e.collectives("all_gather") if _gathers_for_few(e, row))
    for where, rows in by_source(e, gathers).items():
        size, axes = moved(rows)
        yield Finding(
            rule="gathered weights",
            seconds=sum(row.exposed for row in rows),
            where=where,
            what=(
                f"{format_bytes(size)} of weights per step are gathered over {' and '.join(axes)} "
                "for matmuls of few tokens, although the tokens are fewer bytes to move"
            ),
            remedy=(
                f"keep the weights in place, sharded over {' and '.join(axes)} by their widths, "
                "and move the tokens (tensor parallelism); FSDP is for large batches"
            ),
        )


def _gathers_for_few(e: Evidence, row: OpRow) -> bool:
    """Whether it gathers what is stored, for a matmul of few tokens."""
    computation, gather = e.located(row.op)
    if gather is None or not all(e.is_stored(computation, n) for n in gather.operands[:1]):
        return False
    if e.of_cache(computation.name, gather.name):
        return False
    matmul = _consumer(e, computation, gather)
    return matmul is not None and _few_tokens(matmul, gather)


def _consumer(e: Evidence, computation: Computation, gather: Instruction) -> Matmul | None:
    """The largest matmul that reads what was gathered."""
    names = {i.name for i in e.users(computation, gather.name)}
    products = [
        item.op.matmul
        for item in e.work.ops
        if item.computation == computation.name and item.name in names and item.op.matmul
    ]
    return max(products, key=lambda m: float(m.m) * float(m.n) * float(m.k), default=None)


def _few_tokens(matmul: Matmul, gather: Instruction) -> bool:
    weights = elements(gather)
    m, k, n = (float(x) for x in (matmul.m, matmul.k, matmul.n))
    tokens, width = (m, n) if k * n >= m * k else (n, m)
    return 0.9 * k * width <= weights and tokens * (k + width) < FEW * k * width


def whole_sums(e: Evidence) -> Iterator[Finding]:
    """An all-reduce of which every device then takes its own piece: a reduce-scatter would do."""
    found: dict[tuple[str, str], list[OpRow]] = {}
    for row in e.collectives("all_reduce"):
        computation, reduced = e.located(row.op)
        if e.small(row) or reduced is None:
            continue
        if pieces := _only_pieces(e, computation, reduced, row):
            remedy = _scattering(reduced, pieces) or _split(e, row)
            found.setdefault((e.where(row.op), remedy), []).append(row)
        elif like := _handed_back(e, computation, reduced, row):
            found.setdefault((e.where(row.op), _cut_back(like)), []).append(row)
    for (where, remedy), rows in found.items():
        size, axes = moved(rows)
        yield Finding(
            rule="whole sums",
            seconds=sum(_beyond_scatter(e, row) for row in rows),
            where=where,
            what=(
                f"{format_bytes(size)} per step are all-reduced over {' and '.join(axes)}, and "
                f"each device {'needs' if remedy.startswith(BACK) else 'then uses'} its own shard"
            ),
            remedy=remedy,
        )


BACK = "hand it back"


def _handed_back(e: Evidence, c: Computation, reduced: Instruction, row: OpRow) -> Argument | None:
    """The argument that a sum is the whole gradient of: one of the same dims, cut over the axes of
    the sum, which only leaves the program."""
    wire, made = row.op.op.collective, {a.dims for a in arrays(reduced.shape)}
    if wire is None or row.op.op.phase != "backward" or not only_leaves(c, reduced.name):
        return None
    for a in e.arguments:
        whole = tuple(d * e.degree(cut) for d, cut in zip(a.dims, a.cuts, strict=False))
        if whole in made and set(wire.axes) <= a.axes:
            return a
    return None


def _cut_back(like: Argument) -> str:
    return (
        f"{BACK} sharded as '{like.name}' is, {like.layout}: out_shardings of jax.jit, or a "
        "constraint on the gradient, for a reduce-scatter"
    )


def _beyond_scatter(e: Evidence, row: OpRow) -> float:
    """Seconds per step that a sum takes longer than one that is scattered."""
    wire = row.op.op.collective
    assert wire is not None
    scattered = e.cost(replace(row.op.op, collective=replace(wire, kind="reduce_scatter")))
    return max(row.seconds - scattered, 0.0) * row.count


def _only_pieces(
    e: Evidence, c: Computation, reduced: Instruction, row: OpRow
) -> list[Instruction]:
    """The slices that cut pieces out of an all-reduce, if what reads it gives no more than one."""
    collective = row.op.op.collective
    assert collective is not None
    n, whole, users = e.degree(collective.axes), elements(reduced), e.users(c, reduced.name)
    if n == 1 or any(_given(e, u) * n > whole for u in users):
        return []
    return [i for u in users for i in _slices(e, u) if elements(i) * n == whole]


def _given(e: Evidence, user: Instruction) -> int:
    """Elements that an instruction makes; of one that updates a larger array in place, those it
    writes (a loop stacks up gradients so)."""
    body = e.module.computation(user.called[0]) if user.opcode == "fusion" else None
    last = body.root if body else user
    while body and last.opcode == "bitcast":
        last = body.names[last.operands[0]]
    if last.opcode != "dynamic-update-slice":
        return elements(user)
    written = body.find(last.operands[1]) if body else None
    return elements(written) if written else elements(user)


def _slices(e: Evidence, user: Instruction) -> list[Instruction]:
    if user.opcode == "dynamic-slice":
        return [user]
    inside = (i for name in user.called for i in e.module.computation(name).instructions)
    return [s for i in inside for s in _slices(e, i)] if user.opcode == "fusion" else []


def _scattering(reduced: Instruction, pieces: list[Instruction]) -> str:
    """The remedy where a piece is not a whole number of tiles, which TPUs cannot scatter."""
    whole, piece = (next(arrays(i.shape)) for i in (reduced, pieces[0]))
    if whole.layout.tiles and len(piece.dims) == len(whole.dims):
        tile = whole.layout.tiles[0]
        for dim, size in zip(whole.layout.order, tile[::-1], strict=False):
            rows = piece.dims[dim]
            if rows < whole.dims[dim] and rows % size:
                return (
                    f"a piece has {rows} of {whole.dims[dim]:,} rows and a tile {size}, so no "
                    "reduce-scatter can split it: store over fewer devices, or shard another dim"
                )
    return ""


def _split(e: Evidence, row: OpRow) -> str:
    """The remedy where pieces are whole: libtpu scatters over no mesh axis of a whole slice. Over
    its two halves, one after the other, a scatter takes as long on two links as the sum on four."""
    assert row.op.op.collective is not None
    degree, devices = e.degree(row.op.op.collective.axes), e.piece.devices
    if degree == devices >= least_devices().get(e.piece.chip.generation, inf):
        return (
            f"over one mesh axis of all {devices:,} devices of a slice libtpu makes no "
            "reduce-scatter for any program: leave another axis beside the storing one (such as "
            "fsdp=8 x context=2 on 16 devices), or accept this cost of the mesh"
        )
    return (
        "use a reduce-scatter: constrain the result to its sharded layout at its definition, or "
        "use lax.psum_scatter; an all-reduce moves twice the bytes"
    )


def axis_order(e: Evidence) -> Iterator[Finding]:
    """A mesh whose axes in another order would give the busy ones better links."""
    axes = [a for a in e.mesh if e.mesh[a] > 1]
    if not 1 < len(axes) <= MOST_AXES:
        return
    best, order = e.timeline.expected, tuple(axes)
    for other in permutations(axes):
        mesh = Mesh(tuple((a, e.mesh[a]) for a in other))
        try:
            # The axes of every collective are names; only where they lie changes.
            seconds = schedule(replace(e.work, mesh=mesh), e.piece).expected
        except BadRequest:
            continue
        if seconds < best:
            best, order = seconds, other
    if best < BETTER * e.timeline.expected:
        yield Finding(
            rule="axis order",
            seconds=e.timeline.expected - best,
            where="x".join(f"{a}={e.mesh[a]}" for a in axes),
            what=(
                f"with the mesh axes in the order {', '.join(axes)} the busy ones use slower links "
                f"of {e.piece}"
            ),
            remedy=f"make the mesh in the order {', '.join(order)}: the last axis gets the "
            "nearest links",
        )


def host_transfers(e: Evidence) -> Iterator[Finding]:
    """Arrays that go to the host or come from it while the device waits."""
    rows = (r for r in e.timeline.rows if _crosses(r) and not asks_host(e, r))
    for where, group in by_source(e, rows).items():
        waited = sum(r.exposed if r.op.op.stream == "host" else r.per_step for r in group)
        size = sum(float(r.op.op.host_bytes) * r.count for r in group)
        if waited:
            yield Finding(
                rule="host transfer",
                seconds=waited,
                where=where,
                what=f"{format_bytes(size)} per step cross to or from the host while compute waits",
                remedy=(
                    "keep it on the device, or start the copy earlier so that matmuls hide it; "
                    "callbacks and prints belong outside the step"
                ),
            )


def _crosses(row: OpRow) -> bool:
    return row.op.op.stream == "host" or row.bound_by == "host link"


def asks_host(e: Evidence, row: OpRow) -> bool:
    """Whether it is an end of a call of the host's Python: a send or a receipt with a handler, or a
    custom call of a GPU."""
    _, found = e.located(row.op)
    if found is None:
        return False
    words = found.attribute("frontend_attributes")
    handled = "_xla_host_transfer_handler_name" in words and "megascale" not in words
    return "python" in found.target or (found.opcode in ("send", "recv") and handled)


def callbacks(e: Evidence) -> Iterator[Finding]:
    """Calls of the host's Python within the step."""
    rows = (r for r in e.timeline.rows if asks_host(e, r) and r.op.opcode != "recv")
    for where, group in by_source(e, rows).items():
        calls = sum(r.count for r in group)
        waited = sum(r.per_step for r in group)
        yield Finding(
            rule="host callback",
            seconds=calls * CALLBACK + waited,
            where=where,
            what=(
                f"Python on the host runs {calls:g} times per step, and every device waits "
                f"{format_seconds(CALLBACK)} or more for each answer"
            ),
            remedy=(
                "return the value and use it after the step; put prints and checks behind a flag "
                "that is off in production"
            ),
        )


CALLBACK = 27e-6
"""Seconds of a call that the timeline cannot know: what jax.pure_callback of a scalar adds to a
program on the CPU backend, where no bus is crossed, so the least (median of 2,000, jax 0.10.2)."""

RULES: tuple[Rule, ...] = (gathered_weights, whole_sums, axis_order, host_transfers, callbacks)
