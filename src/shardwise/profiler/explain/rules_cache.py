"""Faults of what is stored: caches copied, gathered or held by all, weights copied before use.

A cache is an argument that the program hands back with a part of it written anew.
"""

from collections.abc import Iterator

from shardwise.profiler.explain.evidence import Argument, Evidence, elements
from shardwise.profiler.explain.finding import Finding, Rule, by_source, moved
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
                f"'{tree}', {format_bytes(size)}, is an argument and a result that differ in what "
                "the step writes, and lie twice in memory: all of it is copied"
            ),
            remedy=f"donate it: jax.jit(..., donate_argnames='{tree}') writes it where it lies",
        )


def _whole_copies(e: Evidence, a: Argument) -> Iterator[OpRow]:
    """The copies of all of an argument."""
    for row in e.timeline.rows:
        found = e.module.computation(row.op.computation).find(row.op.name)
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
        yield Finding(
            rule="gathered cache",
            seconds=sum(r.exposed for r in group),
            where=where,
            what=(
                f"{format_bytes(size)} of cache per step are gathered over {' and '.join(axes)} to "
                "be read once"
            ),
            remedy=(
                f"read each piece where it lies: cut it over {' and '.join(axes)} by heads or by "
                "requests, as the queries are, or combine partial softmaxes of its tokens"
            ),
        )


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
                f"'{tree}', {format_bytes(size)}, lies on all {n} devices of {' and '.join(axes)}, "
                "and each reads all of it"
            ),
            remedy=(
                f"cut it over {' and '.join(axes)} too: by requests, or where the heads are too "
                "few by tokens, and combine the softmaxes"
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
                "layout of the product), so that the product reads them where they lie"
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
    gathered_caches,
    replicated_caches,
    copied_weights,
)
