"""Faults of scores that a mask of positions throws away."""

from collections.abc import Iterator, Sequence

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.finding import Finding, Rule
from shardwise.profiler.explain.lineage import constant, elements
from shardwise.profiler.explain.positions import Place, share_true
from shardwise.profiler.explain.rules_larger import TOKENS
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.units import format_flops

FEW, BLOCKS = 0.25, 2
"""The share of scores that a mask keeps up to which it is worth a word (causal ones keep half), and
how many times these scores blocks of a window's width compute."""
FARTHEST = 100
"""Ops that are followed from scores."""


def masked_scores(e: Evidence) -> Iterator[Finding]:
    """Products of tokens with tokens of which a mask of positions keeps few."""
    told: set[str] = set()
    for row in e.timeline.rows:
        c = e.module.computation(row.op.computation)
        found = c.names[row.op.name]
        if not row.flops or row.op.op.id in told or not _scores(found):
            continue
        rows = e.rows_of(c, (i.name for i in of_size(e, c, found)))
        kept = next((k for r in rows if (k := _kept(e, c, c.names[r.op.name])) is not None), 1.0)
        told |= {r.op.op.id for r in rows}
        if kept > FEW:
            continue
        flops = sum(r.flops * r.count for r in rows)
        yield Finding(
            rule="masked scores",
            seconds=sum(map(spent, rows)) * (1 - min(BLOCKS * kept, 1.0)),
            where=e.where(row.op),
            what=(
                f"{format_flops(flops)} per step compute scores between all tokens, and a mask of "
                f"positions keeps only {100 * kept:.2g} %"
            ),
            remedy=(
                "compute the scores in blocks as wide as the window, each with the block before "
                "it, or let a kernel leave the others out: jax.nn.dot_product_attention with "
                "local_window_size, or splash attention with a LocalMask on TPUs"
            ),
        )


def _scores(found: Instruction) -> bool:
    return any(len(a.dims) > 2 and min(a.dims[-2:]) >= TOKENS for a in arrays(found.shape))


def of_size(e: Evidence, c: Computation, found: Instruction) -> list[Instruction]:
    """A value, and what reads it or arrays of as many numbers which follow from it."""
    size, followed, seen, waiting = elements(found), [], {found.name}, [found]
    while waiting and len(seen) < FARTHEST:
        i = waiting.pop(0)
        followed.append(i)
        if elements(i) != size:
            continue
        for user in e.users(c, i.name):
            if user.name not in seen:
                seen.add(user.name)
                waiting.append(user)
    return followed


def _kept(e: Evidence, c: Computation, found: Instruction) -> float | None:
    """The share of scores that an op keeps of what it selects by positions; None where it selects
    by nothing else."""
    fused = found.opcode == "fusion"
    body = e.module.computation(found.called[0]) if fused else c
    around: Place | None = (c, found) if fused else None
    for i in body.instructions if fused else (found,):
        if i.opcode != "select" or not _scores(i):
            continue
        share = share_true(e, body, i.operands[0], around)
        fills = [constant(body, name) for name in i.operands[1:]]
        if share is not None and any(fills):
            return share if fills[1] else 1 - share
    return None


RULES: Sequence[Rule] = (masked_scores,)
