"""Faults of what crosses the network wider, more often or earlier than its reader needs: float32
that becomes bf16, whole arrays of which the largest is taken, small sums one by one, layouts that
only the edge of the program asks for."""

from collections.abc import Iterator, Sequence
from math import prod

from shardwise.profiler.explain.evidence import Argument, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source, moved
from shardwise.profiler.explain.flow import inside
from shardwise.profiler.explain.layouts import only_leaves, steps
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.explain.rules_larger import handed
from shardwise.profiler.explain.rules_twice import pointwise, round_trips, whole_by_constraints
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.rules import rule
from shardwise.profiler.hlo.shapes import Array, arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes, format_seconds
from shardwise.work import grouped

SUMS = ("all_gather", "all_reduce", "reduce_scatter")
MANY = 4
"""Exchanges over the same axes from which they are worth joining (a feeling)."""
FARTHEST = 500
"""Values that are followed back from one exchange to another."""


def wide_exchanges(e: Evidence) -> Iterator[Finding]:
    """Exchanges of numbers that all their readers make narrower."""
    told = {r.op.op.id for one in whole_by_constraints(e) for r in one.rows}
    rows = [(r, _narrower(e, r)) for r in e.collectives(*SUMS) if r.op.op.id not in told]
    share = {r.op.op.id: part for r, part in rows if part < 1}
    for where, group in by_source(e, (r for r, part in rows if part < 1)).items():
        size, axes = moved(group)
        yield Finding(
            rule="wide exchange",
            seconds=sum(_without(e, r, share[r.op.op.id]) for r in group),
            at_most=any(_sums(r) for r in group),
            where=where,
            what=(
                f"{format_bytes(size)} per step cross {' and '.join(axes)} in a wider dtype than "
                "that of their producer or of every reader"
            ),
            remedy=(
                "cast it first: x.astype(jnp.bfloat16) before it is gathered or summed "
                "(jax.lax.optimization_barrier around the cast, where XLA moves it behind)"
            ),
        )


def _sums(row: OpRow) -> bool:
    """Whether it adds up: the compiler may cut the product before a narrow sum into pieces."""
    wire = row.op.op.collective
    return wire is not None and wire.kind != "all_gather"


def _without(e: Evidence, row: OpRow, part: float) -> float:
    """Seconds of an exchange, and of the ops that read it, that the bytes too many take."""
    computation = e.module.computation(row.op.computation)
    casts = [r for r in e.readers_of(row) if r.op.op.op_class in ("elementwise", "copy")]
    cast = max(_kept(e, computation, row.op.name), default=1.0) < 1
    return row.exposed * (1 - part) + sum(spent(r) for r in casts if cast and not r.flops)


def _narrower(e: Evidence, row: OpRow) -> float:
    """The share of an exchange's bytes that its readers keep; 1 where one reads all."""
    computation, found = e.located(row.op)
    if found is None or e.small(row):
        return 1.0
    made = next(arrays(found.shape))
    summed = found.opcode.startswith(("all-reduce", "reduce-scatter"))
    own = min(_made_in(e, computation, found.operands[0]) / _width(made), 1.0) if summed else 1.0
    return min(own, max(_kept(e, computation, found.name), default=1.0))


def _made_in(e: Evidence, computation: Computation, name: str) -> float:
    """Bytes of an element of a value, before it was only given another dtype."""
    found = handed(computation, name)
    parts = [i.opcode for _, i in inside(e.module, computation, found)] if found is not None else []
    if found is not None and "convert" in parts and {*parts} <= {"parameter", "convert", "bitcast"}:
        return min(_width(computation.array_of(n)) for n in (found.name, found.operands[0]))
    return _width(next(arrays(computation.shape_of(name))))


def _width(array: Array) -> float:
    """Bytes of an element."""
    return array.bytes / max(prod(array.dims), 1)


def _kept(e: Evidence, computation: Computation, name: str) -> Iterator[float]:
    """The share of the bytes of each number that every reader of a value keeps."""
    if computation.root.name == name:
        yield 1.0
    for reader in e.users(computation, name):
        if reader.opcode == "convert":
            old, new = computation.array_of(reader.operands[0]), computation.array_of(reader.name)
            yield min(_width(new) / _width(old), 1.0)
        elif (share := _narrowed(e, computation, reader, name)) < 1:
            yield share
        elif reader.opcode == "fusion":
            body = e.module.computation(reader.called[0])
            for p in body.parameters:
                given = handed(computation, reader.operands[int(p.literal)])
                if given is not None and given.name == name:
                    yield from _kept(e, body, p.name)
        else:
            yield 1.0


def _narrowed(e: Evidence, computation: Computation, reader: Instruction, name: str) -> float:
    """The share of the bytes of each number that is left where an op makes narrower numbers of it,
    one of each; 0 where it makes few of many, as scales are: pieces can be reduced first."""
    given, made = computation.names[name], reader.shape
    if reader.opcode != "fusion" or not isinstance(made, Array):
        return 1.0
    if _reduces(e, computation, reader, elements(given)):
        return 0.0
    parts = [i for _, i in inside(e.module, computation, reader)]
    plain = all(pointwise(e, i) or i.opcode in ("slice", "dynamic-slice") for i in parts)
    same = plain and prod(made.dims) <= elements(given)
    return min(_width(made) / _width(next(arrays(given.shape))), 1.0) if same else 1.0


def gathered_to_reduce(e: Evidence) -> Iterator[Finding]:
    """Arrays gathered whole of which every reader takes the largest, or a sum."""
    rows = [r for r in e.collectives("all_gather") if _reduced(e, r)]
    for where, group in by_source(e, rows).items():
        size, axes = moved(group)
        n = e.degree(axes)
        readers = {x.op.op.id: x for r in group for x in e.readers_of(r)}
        yield Finding(
            rule="gathered to reduce",
            seconds=sum(r.exposed for r in group)
            + sum(spent(x) for x in readers.values()) * (1 - 1 / n),
            where=where,
            what=(
                f"{format_bytes(size)} per step are gathered over {' and '.join(axes)} only to be "
                "reduced to a few numbers"
            ),
            remedy=(
                "keep the array sharded, and reduce each shard: max, argmax and top_k of the "
                "shards first, then of their results (remove the constraint, or use jax.shard_map)"
            ),
        )


def _reduced(e: Evidence, row: OpRow) -> bool:
    computation, found = e.located(row.op)
    users = e.users(computation, row.op.name)
    if found is None or not users or e.small(row):
        return False
    return all(_reduces(e, computation, user, elements(found)) for user in users)


def _reduces(e: Evidence, computation: Computation, user: Instruction, whole: int) -> bool:
    """Whether an op makes few numbers of many, and multiplies nothing."""
    parts = [i for _, i in inside(e.module, computation, user)]
    sums = any(rule(i.opcode) in ("reduction", "sort") or i.target == "TopK" for i in parts)
    return (
        sums and elements(user) * 16 <= whole and not any(rule(i.opcode) == "matmul" for i in parts)
    )


def small_exchanges(e: Evidence) -> Iterator[Finding]:
    """Exchanges that take a start and little else, one after the other, none of which needs
    another."""
    rows = [r for r in e.collectives(*SUMS) if e.small(r) and r.exposed]
    for (name, kind, axes), group in grouped(rows, _kind).items():
        free = _independent(e, name, group)
        if len(free) < MANY:
            continue
        seconds = sum(r.exposed for r in free)
        yield Finding(
            rule="small exchanges",
            seconds=seconds * (1 - 1 / len(free)),
            where=e.where(max(free, key=lambda r: r.exposed).op),
            what=(
                f"{len(free)} exchanges ({kind.replace('_', '-')}) over {' and '.join(axes)} of "
                f"{format_bytes(moved(free)[0])} together take {format_seconds(seconds)}, because "
                "each waits for the network's latency"
            ),
            remedy=(
                "exchange them at once: jax.lax.psum((a, b, c), axis) of a tuple, or one array of "
                "all of them; a chain of barriers or of shard_maps keeps XLA from joining them"
            ),
        )


def _kind(row: OpRow) -> tuple[str, str, tuple[str, ...]]:
    wire = row.op.op.collective
    assert wire is not None
    return row.op.computation, wire.kind, wire.axes


def _independent(e: Evidence, name: str, rows: Sequence[OpRow]) -> list[OpRow]:
    """Those that need no other of them: not even after some steps."""
    computation, names = e.module.computation(name), {r.op.name for r in rows}
    return [r for r in rows if not _needs(computation, r.op.name, names)]


def _needs(computation: Computation, name: str, others: set[str]) -> bool:
    waiting, seen = list(computation.names[name].operands), set()
    while waiting and len(seen) < FARTHEST:
        found = computation.find(waiting.pop())
        if found is None or found.name in seen:
            continue
        seen.add(found.name)
        if found.name in others - {name}:
            return True
        waiting += _read(computation, found)
    return False


def _read(computation: Computation, found: Instruction) -> Sequence[str]:
    """The operands of an op; of a part of what passed a barrier that part alone."""
    if found.opcode == "get-tuple-element":
        barrier = computation.find(found.operands[0])
        if barrier is not None and barrier.opcode == "opt-barrier":
            given = computation.find(barrier.operands[0])
            if given is not None and given.opcode == "tuple":
                return (given.operands[int(found.attribute("index"))],)
    return found.operands


def resharded_at_the_edge(e: Evidence) -> Iterator[Finding]:
    """Exchanges that only give a result, or an argument, another layout than the program uses."""
    told = {r.op.op.id for trip in round_trips(e) for r in trip}
    rows = [r for r in e.collectives("all_to_all") if r.op.op.id not in told and _at_edge(e, r)]
    for where, group in by_source(e, rows).items():
        size, axes = moved(group)
        copies = {c.op.op.id: c for r in group for c in copies_beside(e, r)}
        yield Finding(
            rule="resharded at the edge",
            seconds=sum(r.exposed for r in group) + sum(map(spent, copies.values())),
            where=where,
            what=(
                f"{format_bytes(size)} per step are exchanged over {' and '.join(axes)} because "
                "results or arguments of the program have another layout than the computation"
            ),
            remedy=(
                "ask for the layout of the computation: out_shardings (or in_shardings) of jax.jit "
                "along the dim that the computation shards, also for the next step"
            ),
        )


def whole_results(e: Evidence) -> Iterator[Finding]:
    """Results that are gathered as they leave the program, though an argument that is as large and
    of the same dtype is cut over the same axes."""
    rows = {r.op.op.id: a for r in e.collectives("all_gather") if (a := _like(e, r)) is not None}
    for where, group in by_source(e, (e.rows[key] for key in rows)).items():
        size, axes = moved(group)
        copies = {c.op.op.id: c for r in group for c in copies_beside(e, r)}
        like = rows[group[0].op.op.id]
        yield Finding(
            rule="whole results",
            seconds=sum(r.exposed for r in group) + sum(map(spent, copies.values())),
            where=where,
            what=(
                f"{format_bytes(size)} per step are gathered over {' and '.join(axes)} only to "
                f"leave the step replicated ({len(group)} gathers), though '{like.name}' arrives "
                "sharded"
            ),
            remedy=(
                f"return it in the layout of '{like.name}', {like.layout}: out_shardings of "
                "jax.jit, jax.tree.map(lambda x: x.sharding, state) for a whole state, or a "
                "constraint on the result; the next step takes it as it is, and it can be donated"
            ),
        )


def _like(e: Evidence, row: OpRow) -> Argument | None:
    """The argument that lies as the pieces of a result which the partitioner gathers at the end."""
    (computation, found), wire = e.located(row.op), row.op.op.collective
    if found is None or wire is None or computation.name != e.module.entry or e.small(row):
        return None
    if found.op_name.endswith("/all_gather") or not only_leaves(computation, found.name):
        return None
    made = {(a.dims, a.dtype) for a in arrays(found.shape)}
    for a in e.arguments:
        whole = tuple(d * e.degree(cut) for d, cut in zip(a.dims, a.cuts, strict=True))
        if (whole, a.dtype) in made and set(wire.axes) <= a.axes:
            return a
    return None


def _at_edge(e: Evidence, row: OpRow) -> bool:
    """Whether the partitioner made an exchange whose result only leaves the program, or whose
    operand is an argument as it came."""
    computation, found = e.located(row.op)
    asked = found is not None and found.op_name.endswith(("/all_to_all", "/ragged_all_to_all"))
    if found is None or asked or computation.name != e.module.entry or e.small(row):
        return False
    given = all(e.is_stored(computation, name) for name in found.operands)
    return given or only_leaves(computation, found.name)


def copies_beside(e: Evidence, row: OpRow) -> Iterator[OpRow]:
    """Copies that lay together what is sent, or apart what came."""
    computation = e.module.computation(row.op.computation)
    around = [i.name for i in computation.readers(row.op.name)]
    around += [i.name for n in around for i in computation.readers(n)]
    given = [computation.names[n] for n in computation.names[row.op.name].operands]
    given += [computation.names[i.operands[0]] for i in given if i.opcode == "bitcast"]
    names = dict.fromkeys((*around, *(i.name for i in given)))
    yield from (r for r in e.rows_of(computation, names) if r.op.op.op_class == "copy")


def tables_cut_by_rows(e: Evidence) -> Iterator[Finding]:
    """Lookups in a table whose rows are cut: every device has few of them, and all are summed."""
    rows = [(r, made) for r in e.collectives("all_reduce") if (made := _masked_rows(e, r))]
    for where, same in grouped(rows, lambda pair: e.where(pair[0].op)).items():
        group = [r for r, _ in same]
        size, axes = moved(group)
        seconds = sum(r.exposed for r in group) + sum(spent(m) for _, made in same for m in made)
        if seconds < MOSTLY * e.timeline.expected:
            continue
        yield Finding(
            rule="table cut by rows",
            seconds=seconds,
            where=where,
            what=(
                f"a table is sharded by rows over {' and '.join(axes)}: each device looks up its "
                f"own rows, with zeros for the others, and {format_bytes(size)} per step are "
                "all-reduced"
            ),
            remedy=(
                f"shard the table by its width over {' and '.join(axes)} (P(None, axis)), so that "
                "each device takes its part of every row; or replicate a small table"
            ),
        )


MOSTLY = 0.2
"""The share of a step from which lookups cost too much: tables of words are often cut so, for the
product with all words at the other end."""


def _masked_rows(e: Evidence, row: OpRow) -> list[OpRow]:
    """The op that puts zeros for the rows that a device lacks, where a sum is of such rows."""
    computation = e.module.computation(row.op.computation)
    found = computation.names[row.op.name]
    if e.small(row) or not found.op_name.endswith("/gather"):
        return []
    given = (handed(computation, n) for n in found.operands)
    made = e.rows_of(computation, (i.name for i in given if i is not None))
    return made if any(i.opcode == "select" for r in made for _, i in steps(e, r)) else []


RULES: Sequence[Rule] = (
    wide_exchanges,
    gathered_to_reduce,
    small_exchanges,
    resharded_at_the_edge,
    whole_results,
    tables_cut_by_rows,
)
