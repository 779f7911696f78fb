"""Faults of what is stored: caches copied, gathered or held by all, weights copied before use.

A cache is an argument that the program hands back with a part of it written anew.
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.profiler.explain.evidence import Argument, Evidence
from shardwise.profiler.explain.finding import WORTH, Finding, Rule, by_source, moved
from shardwise.profiler.explain.layouts import relays, turns
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.rules import rule
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes
from shardwise.work import grouped

WHOLE = 0.9
"""A copy of at least this share of an argument's elements is one of all of it."""


def undonated_caches(e: Evidence) -> Iterator[Finding]:
    """Caches that are not donated: a step writes a token and copies all of the rest."""
    kept = [a for a in e.caches if not a.donated]
    for tree, leaves in grouped(kept, lambda a: a.tree).items():
        size = sum(a.bytes for a in leaves)
        copies = [r for a in leaves for r in _whole_copies(e, a)]
        copied = sum(spent(r) for r in {r.op.op.id: r for r in copies}.values())
        yield Finding(
            rule="undonated cache",
            seconds=max(copied, size / e.bandwidth),
            where=_written_at(e, leaves[0]),
            what=(
                f"'{tree}', {format_bytes(size)}, is an argument and, updated, a result: the step "
                "copies all of it, and it is in memory twice"
            ),
            remedy=f"donate it: jax.jit(..., donate_argnames='{tree}') writes it in place",
        )


def undonated_state(e: Evidence) -> Iterator[Finding]:
    """A train state that comes in and goes out, leaf by leaf, and is not donated."""
    found = [a for a in e.arguments if not a.donated and a.dims and e.renewed.get(a.number)]
    for tree, leaves in grouped(found, lambda a: a.tree).items():
        size = sum(a.bytes for a in leaves)
        copies = {r.op.op.id: spent(r) for a in leaves for r in _whole_copies(e, a)}
        large = size >= STATE_SHARE * e.capacity
        large = large or sum(copies.values()) >= WORTH * e.timeline.expected
        if len(leaves) < STATE_LEAVES or not large:
            continue
        yield Finding(
            rule="undonated state",
            seconds=sum(copies.values()),
            frees=size,
            where=e.renewed[max(leaves, key=lambda a: a.bytes).number],
            what=(
                f"'{tree}', {len(leaves)} arrays of {format_bytes(size)} together, is replaced by "
                f"a new version: old and new are in memory together, {format_bytes(size)} of "
                f"{format_bytes(e.capacity)} more than needed"
            ),
            remedy=(
                f"donate it: jax.jit(..., donate_argnames='{tree}'), and use only the returned one"
            ),
        )


STATE_LEAVES, STATE_SHARE = 2, 0.01
"""Arrays that a train state has at least (a parameter and what is kept of it), and the share of the
memory from which it is worth a word (a feeling)."""


def _whole_copies(e: Evidence, a: Argument) -> Iterator[OpRow]:
    for row in e.timeline.rows:
        _, found = e.located(row.op)
        if row.op.op.op_class != "copy" or found is None:
            continue
        whole = elements(found) >= WHOLE * a.elements and found.opcode.startswith("copy")
        if whole and a.number in e.pieces_of(row.op.computation, row.op.name):
            yield row


def _written_at(e: Evidence, a: Argument) -> str:
    """The line that writes a part of it."""
    for item in e.work.ops:
        facts = e.lineage.facts(item.computation, item.name)
        if (a.number, True) in facts and item.sources:
            return e.where(item)
    return a.layout


def gathered_caches(e: Evidence) -> Iterator[Finding]:
    """Caches that lie in pieces and are gathered to be read."""
    rows = (r for r in e.collectives("all_gather") if e.of_cache(r.op.computation, r.op.name))
    for where, group in by_source(e, rows).items():
        size, axes = moved(group)
        copies = {c.op.op.id: c for r in group for c in _copies_of(e, r)}
        yield Finding(
            rule="gathered cache",
            seconds=sum(r.exposed for r in group) + sum(map(spent, copies.values())),
            where=where,
            what=(
                f"{format_bytes(size)} of cache per step are gathered over {' and '.join(axes)} "
                "only to be read once"
            ),
            remedy=(
                f"read each shard in place: shard it over {' and '.join(axes)} by heads or by "
                "requests, as the queries are, or combine partial softmaxes of its tokens"
            ),
        )


def gathered_copies(e: Evidence) -> set[str]:
    """The ids of copies of caches that were gathered."""
    rows = (r for r in e.collectives("all_gather") if e.of_cache(r.op.computation, r.op.name))
    return {c.op.op.id for r in rows for c in _copies_of(e, r)}


def _copies_of(e: Evidence, row: OpRow) -> Iterator[OpRow]:
    """Copies on the compute stream of what is gathered: before it is sent and after it came."""
    gathered = set(e.of_cache(row.op.computation, row.op.name))
    for r in e.timeline.rows:
        own = r.op.op.op_class == "copy" and r.op.op.stream == "compute"
        if own and gathered & set(e.of_cache(r.op.computation, r.op.name)):
            yield r


def cut_by_tokens(e: Evidence) -> Iterator[Finding]:
    """Caches cut along their tokens, whose softmax crosses the network, though a dim that is whole
    could be cut instead."""
    largest = [r for r in e.collectives("all_reduce") if _takes_largest(e, r)]
    for (tree, axis), leaves in _token_cuts(e).items():
        numbers = {a.number for a in leaves}
        crossing = [r for r in largest if r.op.op.collective and axis in r.op.op.collective.axes]
        if not any(_of_scores(e, r, numbers) for r in crossing):
            continue
        where, n = _written_at(e, leaves[0]), e.degree([axis])
        exchanges = [
            r
            for r in e.collectives("all_reduce", "all_gather", "reduce_scatter", "permute")
            if r.op.op.collective and axis in r.op.op.collective.axes
        ]
        writes = [r for r in e.timeline.rows if e.where(r.op) == where and r not in exchanges]
        writes = [r for r in writes if not _laid_anew(e, r)]
        small = sorted((spent(r) for r in writes), reverse=True)[: -len(leaves)]
        yield Finding(
            rule="cache cut along its tokens",
            seconds=sum(r.exposed for r in exchanges) + sum(small),
            where=where,
            what=(
                f"'{tree}' has layout {leaves[0].layout}: softmax and matmuls are reduced over "
                f"{axis} in {len(exchanges)} collectives, and all {n} devices check whether they "
                "own a new token"
            ),
            remedy=(
                f"shard its heads over {axis}: {_by_heads(e, leaves[0], axis)}, so that each "
                "device has whole softmaxes and writes its own shard"
            ),
        )


def _laid_anew(e: Evidence, row: OpRow) -> bool:
    """Whether an op turns an array, or copies or writes into what was turned: no other cut would
    change that."""
    turned = any(relays(e, r) for r in e.rows_of(*e.given_to(row)))
    return relays(e, row) or (turned and (row.op.opcode == "copy" or turns(e, row)))


def _token_cuts(e: Evidence) -> dict[tuple[str, str], list[Argument]]:
    """Caches by tree and the axis that alone cuts a dim of them, where a later one is whole and
    divides."""
    found = [
        (a, axes[0])
        for a in e.caches
        for at, axes in enumerate(a.cuts)
        if len(axes) == 1 and at < len(a.dims) - 2 and _free_dim(e, a, axes[0]) is not None
    ]
    groups = grouped(found, lambda pair: (pair[0].tree, pair[1]))
    return {key: [a for a, _ in pairs] for key, pairs in groups.items()}


def _free_dim(e: Evidence, a: Argument, axis: str) -> int | None:
    """The dim before the last, if nothing cuts it and the axis could: heads before their width."""
    at = len(a.dims) - 2
    free = not a.cuts[at] and a.dims[at] % e.degree([axis]) == 0
    return at if free else None


def _by_heads(e: Evidence, a: Argument, axis: str) -> str:
    cuts = tuple(tuple(x for x in names if x != axis) for names in a.cuts)
    at = _free_dim(e, a, axis)
    cuts = tuple((axis,) if i == at else names for i, names in enumerate(cuts))
    return replace(a, cuts=cuts).layout


def _of_scores(e: Evidence, row: OpRow, numbers: set[int]) -> bool:
    """Whether the products that a collective's operand comes of read one of these arguments."""
    computation = e.module.computation(row.op.computation)
    waiting, seen = [row.op.name], set()
    while waiting and len(seen) < FARTHEST:
        found = computation.find(waiting.pop())
        if found is None or found.name in seen:
            continue
        seen.add(found.name)
        own = e.named.get((computation.name, found.name))
        if own is None or not own.flops:
            waiting += found.operands
        elif any(numbers & e.pieces_of(computation.name, name) for name in found.operands):
            return True
    return False


FARTHEST = 100
"""Values that are followed from a softmax's largest to its products."""


def _takes_largest(e: Evidence, row: OpRow) -> bool:
    """Whether an all-reduce is of the largest, as a softmax needs it."""
    _, found = e.located(row.op)
    called = [e.module.computations.get(name) for name in (found.called if found else ())]
    return any(one is not None and one.root.opcode == "maximum" for one in called)


def replicated_caches(e: Evidence) -> Iterator[Finding]:
    """Caches of which several devices hold and read the same piece."""
    same = grouped((a for a in e.caches if a.copies), lambda a: (a.tree, a.copies))
    for (tree, axes), leaves in same.items():
        size, n = sum(a.bytes for a in leaves), e.degree(axes)
        yield Finding(
            rule="replicated cache",
            seconds=size * (1 - 1 / n) / e.bandwidth,
            where=_written_at(e, leaves[0]),
            what=(
                f"'{tree}', {format_bytes(size)}, is replicated on all {n} devices of "
                f"{' and '.join(axes)}, and each reads all of it"
            ),
            remedy=(
                f"shard it over {' and '.join(axes)} too: by requests, or with too few heads by "
                "tokens, and combine the softmaxes"
            ),
        )


def copied_weights(e: Evidence) -> Iterator[Finding]:
    """What is stored, copied within HBM in every round of a loop before it is used."""
    for where, group in by_source(e, (r for r in e.timeline.rows if _copies_stored(e, r))).items():
        size = sum(r.hbm_bytes for r in group) / 2  # read and written
        cached = any(e.of_cache(r.op.computation, r.op.name) for r in group)
        yield Finding(
            rule="copied cache" if cached else "copied weights",
            seconds=sum(r.per_step for r in group),
            where=where,
            what=(
                f"{format_bytes(size)} per step of stored {'caches' if cached else 'weights'} are "
                f"copied, in {group[0].count:g} rounds, before they are used"
            ),
            remedy=(
                "store them as they are used (stacked along the scanned dim first, joined, in the "
                "layout of the matmul), so that the matmul reads them in place"
            ),
        )


def _copies_stored(e: Evidence, row: OpRow) -> bool:
    op = row.op.op
    if op.op_class != "copy" or op.stream != "compute" or not op.body or row.count <= 1:
        return False
    if op.phase in ("backward", "recompute"):
        return False  # the barrier of jax.checkpoint, which no layout of the weights helps
    facts = e.lineage.facts(row.op.computation, row.op.name)
    if not row.hbm_bytes or any(changed for _, changed in facts):
        return False  # an update in place is no copy
    return bool(facts) and _serves_one(e, row)


def _serves_one(e: Evidence, row: OpRow) -> bool:
    """Whether one op alone reads it: a copy that several read may be cheaper than none. What is
    sent must be copied out."""
    computation = e.module.computation(row.op.computation)
    readers = e.users(computation, row.op.name)
    sent = any(rule(i.opcode) == "collective" for i in readers)
    return not sent and len([i for i in readers if not i.opcode.endswith("-start")]) <= 1


RULES: tuple[Rule, ...] = (
    undonated_caches,
    undonated_state,
    gathered_caches,
    replicated_caches,
    cut_by_tokens,
    copied_weights,
)
